// Catch2 beside torch: both define CHECK, and the order of includes would silently decide which one
// a test gets. Torch first, its macro removed, then Catch2. Torch-free tests include
// <catch2/catch.hpp> directly.
#pragma once

#include <ATen/ATen.h>

#undef CHECK
#include <catch2/catch.hpp>
