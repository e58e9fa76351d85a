# cmake --install: headers, both libraries, ringfoldConfig.cmake and ringfold.pc.
include(GNUInstallDirs)
include(CMakePackageConfigHelpers)

set(package_dir ${CMAKE_INSTALL_LIBDIR}/cmake/ringfold)
install(TARGETS ringfold EXPORT ringfoldTargets ARCHIVE DESTINATION ${CMAKE_INSTALL_LIBDIR})
install(EXPORT ringfoldTargets NAMESPACE ringfold:: DESTINATION ${package_dir})
set(not_installed)
if(RINGFOLD_HAS_CAPI)  # an export of its own: C projects need none of the dependencies of the static library
  install(TARGETS ringfold_c EXPORT ringfoldCTargets LIBRARY DESTINATION ${CMAKE_INSTALL_LIBDIR})
  install(EXPORT ringfoldCTargets NAMESPACE ringfold:: DESTINATION ${package_dir})
else()
  set(not_installed PATTERN c_api.h EXCLUDE)
endif()
install(DIRECTORY ${PROJECT_SOURCE_DIR}/include/ringfold DESTINATION ${CMAKE_INSTALL_INCLUDEDIR} ${not_installed})

set(RINGFOLD_HAS_OPENMP OFF)
if(RINGFOLD_PARALLEL STREQUAL "openmp")
  set(RINGFOLD_HAS_OPENMP ON)
endif()
configure_package_config_file(${CMAKE_CURRENT_LIST_DIR}/ringfoldConfig.cmake.in ${PROJECT_BINARY_DIR}/ringfoldConfig.cmake
                              INSTALL_DESTINATION ${package_dir})
write_basic_package_version_file(${PROJECT_BINARY_DIR}/ringfoldConfigVersion.cmake COMPATIBILITY SameMinorVersion)
install(FILES ${PROJECT_BINARY_DIR}/ringfoldConfig.cmake ${PROJECT_BINARY_DIR}/ringfoldConfigVersion.cmake
        DESTINATION ${package_dir})

# pkg-config is for the ABI. What --static adds is what libringfold.a needs, for C and C++ programs alike.
if(RINGFOLD_HAS_CAPI)
  set(pc_private_libs "-lstdc++ -lm -pthread")
  if(RINGFOLD_HAS_OPENMP)
    string(PREPEND pc_private_libs "-fopenmp ")
  endif()
  if(RINGFOLD_HAS_CUDA)
    string(PREPEND pc_private_libs "${CUDA_cudart_static_LIBRARY} -ldl -lrt ")
  endif()
  # Relative to the file itself, so that an installed tree can be moved.
  file(RELATIVE_PATH pc_prefix /prefix/${CMAKE_INSTALL_LIBDIR}/pkgconfig /prefix)
  string(REGEX REPLACE "/$" "" pc_prefix ${pc_prefix})
  configure_file(${CMAKE_CURRENT_LIST_DIR}/ringfold.pc.in ${PROJECT_BINARY_DIR}/ringfold.pc @ONLY)
  install(FILES ${PROJECT_BINARY_DIR}/ringfold.pc DESTINATION ${CMAKE_INSTALL_LIBDIR}/pkgconfig)
endif()
