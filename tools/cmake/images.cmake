# libjpeg-turbo, libpng and libwebp as one imported target. Only the module that decodes images links them.
pkg_check_modules(RINGSIDE_IMAGES IMPORTED_TARGET libjpeg libpng libwebp libwebpdemux)
if(NOT RINGSIDE_IMAGES_FOUND)
  message(WARNING "Images will be refused: libjpeg, libpng or libwebp was not found. Run tools/setup.sh, or install "
    "libjpeg62-turbo-dev, libpng-dev and libwebp-dev.")
  return()
endif()
add_library(ringside_image_libraries INTERFACE)
target_link_libraries(ringside_image_libraries INTERFACE PkgConfig::RINGSIDE_IMAGES)
