# What every target is built with: `berth_warnings` and `berth_options`, and the check that the
# compiler gets coroutines right.

set(CMAKE_CXX_FLAGS_SANITIZE "-O1 -g1 -fno-omit-frame-pointer")
set(CMAKE_C_FLAGS_SANITIZE "-O1 -g1 -fno-omit-frame-pointer")

try_run(BERTH_COROUTINE_RUN BERTH_COROUTINE_BUILT
    ${CMAKE_BINARY_DIR}/coroutine_check
    ${CMAKE_SOURCE_DIR}/configs/cmake/coroutine_check.cpp
    CXX_STANDARD 20 CXX_STANDARD_REQUIRED ON
    RUN_OUTPUT_VARIABLE BERTH_COROUTINE_BALANCE)
if(NOT BERTH_COROUTINE_BUILT OR NOT BERTH_COROUTINE_RUN EQUAL 0)
    message(FATAL_ERROR
        "${CMAKE_CXX_COMPILER} (${CMAKE_CXX_COMPILER_ID} ${CMAKE_CXX_COMPILER_VERSION}) miscompiles "
        "C++20 coroutines: a value captured by a lambda within co_await was destroyed more often "
        "than made (balance: ${BERTH_COROUTINE_BALANCE}). g++ 12 is known for it. "
        "Build with clang-19: cmake --preset release.")
endif()

add_library(berth_warnings INTERFACE)
target_compile_options(berth_warnings INTERFACE
    -Wall -Wextra -Wpedantic -Wconversion -Wshadow -Wnon-virtual-dtor -Werror)

add_library(berth_options INTERFACE)
target_include_directories(berth_options INTERFACE ${CMAKE_SOURCE_DIR})
target_link_options(berth_options INTERFACE -static-libgcc)
if(BERTH_SANITIZE)
    target_compile_options(berth_options INTERFACE
        -fsanitize=${BERTH_SANITIZE} -fno-sanitize-recover=all)
    target_link_options(berth_options INTERFACE -fsanitize=${BERTH_SANITIZE})
    target_compile_definitions(berth_options INTERFACE BERTH_SANITIZED=1)
endif()

if(BERTH_FUZZ)
    # Coverage for the fuzz targets in all code, without libFuzzer's main.
    target_compile_options(berth_options INTERFACE -fsanitize=fuzzer-no-link)
endif()

# berth_library(NAME SOURCES ... LINK ...): a static library with our options, alias berth::NAME.
function(berth_library name)
    cmake_parse_arguments(ARG "" "" "SOURCES;LINK;PRIVATE_LINK" ${ARGN})
    add_library(berth_${name} STATIC ${ARG_SOURCES})
    add_library(berth::${name} ALIAS berth_${name})
    target_link_libraries(berth_${name}
        PUBLIC berth_options ${ARG_LINK} PRIVATE berth_warnings ${ARG_PRIVATE_LINK})
endfunction()

# berth_program(NAME SOURCES ... LINK ...): an executable that carries libstdc++ with it.
function(berth_program name)
    cmake_parse_arguments(ARG "" "" "SOURCES;LINK" ${ARGN})
    add_executable(${name} ${ARG_SOURCES})
    target_link_libraries(${name} PRIVATE berth_options berth_warnings ${ARG_LINK})
    if(NOT BERTH_SANITIZE)
        target_link_options(${name} PRIVATE -static-libstdc++)
    endif()
endfunction()

# berth_test(NAME [LABEL unit|system|gpu] SOURCES ... LINK ... [DEPENDS programs...]):
# a GoogleTest program, each test its own ctest case.
# System tests find the programs under test through the environment variable BERTH_BIN_DIR: one
# variable, as gtest_discover_tests takes what follows the first ";" for another property.
function(berth_test name)
    cmake_parse_arguments(ARG "" "LABEL;TIMEOUT" "SOURCES;LINK;DEPENDS" ${ARGN})
    if(NOT ARG_LABEL)
        set(ARG_LABEL unit)
    endif()
    if(NOT ARG_TIMEOUT)
        set(ARG_TIMEOUT 120)
    endif()
    add_executable(${name} ${ARG_SOURCES})
    target_link_libraries(${name} PRIVATE berth_options berth_warnings ${ARG_LINK}
        GTest::gtest GTest::gmock GTest::gtest_main)
    set_target_properties(${name} PROPERTIES
        RUNTIME_OUTPUT_DIRECTORY ${CMAKE_BINARY_DIR}/tests)
    if(ARG_DEPENDS)
        add_dependencies(${name} ${ARG_DEPENDS})
    endif()
    gtest_discover_tests(${name} DISCOVERY_TIMEOUT 60 PROPERTIES
        LABELS ${ARG_LABEL} TIMEOUT ${ARG_TIMEOUT}
        ENVIRONMENT "BERTH_BIN_DIR=${CMAKE_BINARY_DIR}/bin")
endfunction()

# berth_fuzz(NAME SOURCES ... LINK ...): a libFuzzer program, built with -DBERTH_FUZZ=ON. Its ctest
# case runs a bounded number of inputs.
function(berth_fuzz name)
    if(NOT BERTH_FUZZ)
        return()
    endif()
    cmake_parse_arguments(ARG "" "" "SOURCES;LINK" ${ARGN})
    add_executable(${name} ${ARG_SOURCES})
    target_link_libraries(${name} PRIVATE berth_options berth_warnings ${ARG_LINK})
    target_compile_options(${name} PRIVATE -fsanitize=fuzzer)
    target_link_options(${name} PRIVATE -fsanitize=fuzzer)
    set_target_properties(${name} PROPERTIES
        RUNTIME_OUTPUT_DIRECTORY ${CMAKE_BINARY_DIR}/tests)
    add_test(NAME ${name} COMMAND ${name} -runs=20000 -max_len=4096)
    set_tests_properties(${name} PROPERTIES LABELS fuzz TIMEOUT 300)
    if(NOT TARGET fuzz_targets)
        add_custom_target(fuzz_targets)
    endif()
    add_dependencies(fuzz_targets ${name})
endfunction()

# berth_c_program(NAME SOURCES ... LINK ...): a C99 program for a test. With sanitizers it is linked as
# C++ is, since libberth then needs their C++ runtime.
function(berth_c_program name)
    cmake_parse_arguments(ARG "" "" "SOURCES;LINK" ${ARGN})
    add_executable(${name} ${ARG_SOURCES})
    set_target_properties(${name} PROPERTIES
        C_STANDARD 99 C_STANDARD_REQUIRED ON C_EXTENSIONS OFF
        RUNTIME_OUTPUT_DIRECTORY ${CMAKE_BINARY_DIR}/tests)
    target_compile_options(${name} PRIVATE -Wall -Wextra -Wpedantic -Werror)
    target_include_directories(${name} PRIVATE ${CMAKE_SOURCE_DIR})
    target_link_libraries(${name} PRIVATE ${ARG_LINK})
    if(BERTH_SANITIZE)
        target_link_options(${name} PRIVATE -fsanitize=${BERTH_SANITIZE})
        set_target_properties(${name} PROPERTIES LINKER_LANGUAGE CXX)
    endif()
endfunction()
