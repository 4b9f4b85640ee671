// Errors of libjpeg, which come back by longjmp. Needs <cstdio> and jpeglib.h before it.
#pragma once

#include <csetjmp>

namespace ringside::engine {

// libjpeg calls back with its own structure, which is the first member.
struct JpegErrors {
  jpeg_error_mgr base;
  std::jmp_buf jump;
  char message[JMSG_LENGTH_MAX];
};

// The callback error_exit: keeps the message and returns to where setjmp() was called.
inline void jump_with_message(j_common_ptr info) {
  auto* errors = reinterpret_cast<JpegErrors*>(info->err);
  info->err->format_message(info, errors->message);
  std::longjmp(errors->jump, 1);
}

}  // namespace ringside::engine
