# Libraries from the distribution. All that has an archive is linked from it, so that one binary
# runs on any machine with glibc 2.36 or newer.

set(Boost_USE_STATIC_LIBS ON)
find_package(Boost 1.81 CONFIG REQUIRED COMPONENTS json url)
find_package(Threads REQUIRED)
find_package(fmt REQUIRED)
find_package(spdlog REQUIRED)
find_package(CLI11 REQUIRED)
find_package(tl-expected REQUIRED)
find_package(GTest CONFIG REQUIRED)
find_package(rapidcheck REQUIRED)
find_package(OpenSSL REQUIRED)

# A static archive where the distribution has one, else the shared library.
function(berth_find_archive target name header)
    find_library(BERTH_${name}_LIBRARY NAMES lib${name}.a ${name} REQUIRED)
    find_path(BERTH_${name}_INCLUDE ${header} REQUIRED)
    add_library(${target} INTERFACE IMPORTED GLOBAL)
    target_link_libraries(${target} INTERFACE ${BERTH_${name}_LIBRARY})
    target_include_directories(${target} SYSTEM INTERFACE ${BERTH_${name}_INCLUDE})
endfunction()

berth_find_archive(berth_dep_sqlite3 sqlite3 sqlite3.h)
berth_find_archive(berth_dep_sqlitecpp SQLiteCpp SQLiteCpp/SQLiteCpp.h)
target_link_libraries(berth_dep_sqlitecpp INTERFACE berth_dep_sqlite3 ${CMAKE_DL_LIBS} Threads::Threads)
berth_find_archive(berth_dep_yaml yaml-cpp yaml-cpp/yaml.h)
berth_find_archive(berth_dep_xxhash xxhash xxhash.h)
berth_find_archive(berth_dep_pcre2 pcre2-8 pcre2.h)
berth_find_archive(berth_dep_utf8proc utf8proc utf8proc.h)
berth_find_archive(berth_dep_crypto crypto openssl/evp.h)
target_link_libraries(berth_dep_crypto INTERFACE ${CMAKE_DL_LIBS} Threads::Threads)
# An imported library of its own, so that its archive stands before crypto's, which it needs.
find_library(BERTH_ssl_LIBRARY NAMES libssl.a ssl REQUIRED)
add_library(berth_dep_ssl UNKNOWN IMPORTED GLOBAL)
set_target_properties(berth_dep_ssl PROPERTIES IMPORTED_LOCATION ${BERTH_ssl_LIBRARY}
    INTERFACE_LINK_LIBRARIES "${BERTH_crypto_LIBRARY};berth_dep_crypto")

# spdlog and fmt as headers alone: the distribution has no archive of spdlog.
add_library(berth_dep_log INTERFACE)
target_compile_definitions(berth_dep_log INTERFACE
    SPDLOG_HEADER_ONLY SPDLOG_FMT_EXTERNAL FMT_HEADER_ONLY)
get_target_property(BERTH_SPDLOG_INCLUDE spdlog::spdlog_header_only INTERFACE_INCLUDE_DIRECTORIES)
target_include_directories(berth_dep_log SYSTEM INTERFACE ${BERTH_SPDLOG_INCLUDE})
target_link_libraries(berth_dep_log INTERFACE Threads::Threads)

add_library(berth_dep_boost INTERFACE)
target_link_libraries(berth_dep_boost INTERFACE Boost::headers Boost::json Boost::url Threads::Threads)
target_compile_definitions(berth_dep_boost INTERFACE
    BOOST_ASIO_SEPARATE_COMPILATION BOOST_BEAST_SEPARATE_COMPILATION
    BOOST_ASIO_NO_DEPRECATED)

# CUDA: only the driver's header is needed; its functions are fetched at run time. The toolkit has
# it, and so has the wheel that libtorch pulls in.
find_path(BERTH_CUDA_INCLUDE cuda.h
    HINTS $ENV{CUDA_HOME}/include /usr/local/cuda/include
    PATHS ${CMAKE_SOURCE_DIR}/build/venv/lib/python3.11/site-packages/nvidia/cu13/include
          ${CMAKE_SOURCE_DIR}/build/venv/lib/python3.12/site-packages/nvidia/cu13/include)
if(BERTH_CUDA_INCLUDE)
    add_library(berth_dep_cuda INTERFACE)
    target_include_directories(berth_dep_cuda SYSTEM INTERFACE ${BERTH_CUDA_INCLUDE})
    target_link_libraries(berth_dep_cuda INTERFACE ${CMAKE_DL_LIBS})
    message(STATUS "CUDA driver header: ${BERTH_CUDA_INCLUDE}/cuda.h")
else()
    message(STATUS "cuda.h not found: building without the cuda backend")
endif()

# libtorch, from the wheel in build/venv or wherever BERTH_TORCH_DIR says.
if(BERTH_ENGINE)
    if(NOT BERTH_TORCH_DIR)
        file(GLOB BERTH_TORCH_FOUND ${CMAKE_SOURCE_DIR}/build/venv/lib/python3*/site-packages/torch)
        list(GET BERTH_TORCH_FOUND 0 BERTH_TORCH_FIRST)
        set(BERTH_TORCH_DIR ${BERTH_TORCH_FIRST} CACHE PATH "The torch package's folder")
    endif()
    if(NOT EXISTS ${BERTH_TORCH_DIR}/lib/libtorch_cpu.so)
        message(FATAL_ERROR
            "libtorch not found in '${BERTH_TORCH_DIR}'. Run configs/quickstart.sh, which installs "
            "torch 2.11.0 under build/venv, or pass -DBERTH_TORCH_DIR=DIR or -DBERTH_ENGINE=OFF.")
    endif()
    # Linked against the CPU half alone; libtorch_cuda is opened at run time when the device is a
    # GPU, so that one binary runs with and without one.
    add_library(berth_dep_torch INTERFACE)
    target_include_directories(berth_dep_torch SYSTEM INTERFACE
        ${BERTH_TORCH_DIR}/include ${BERTH_TORCH_DIR}/include/torch/csrc/api/include)
    target_link_libraries(berth_dep_torch INTERFACE
        ${BERTH_TORCH_DIR}/lib/libtorch_cpu.so ${BERTH_TORCH_DIR}/lib/libc10.so)
    target_link_options(berth_dep_torch INTERFACE
        -Wl,-rpath,${BERTH_TORCH_DIR}/lib -Wl,--allow-shlib-undefined)
    target_compile_definitions(berth_dep_torch INTERFACE _GLIBCXX_USE_CXX11_ABI=1)
endif()
