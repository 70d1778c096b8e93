# berth_kernels(TARGET SOURCE IMAGE): compiles SOURCE (.cu) with nvcc into a fatbin and embeds it into
# IMAGE, a .cpp of TARGET that includes the file BERTH_KERNEL_IMAGE. Nothing of CUDA is linked: the
# driver loads the fatbin at run time. Without a usable nvcc the build goes on, IMAGE is empty and
# the CPU does the work.

set(BERTH_CUDA_ARCHITECTURES "90-real;100-real;120-real;120-virtual" CACHE STRING
    "GPU architectures of the kernels: NN-real for code, NN-virtual for PTX")

find_program(BERTH_NVCC nvcc HINTS $ENV{CUDA_HOME}/bin $ENV{CUDA_PATH}/bin /usr/local/cuda/bin)
set(BERTH_KERNEL_FLAGS)
if(BERTH_NVCC)
    execute_process(COMMAND ${BERTH_NVCC} --list-gpu-arch
        OUTPUT_VARIABLE BERTH_NVCC_KNOWS ERROR_QUIET)
    foreach(wanted IN LISTS BERTH_CUDA_ARCHITECTURES)
        if(NOT wanted MATCHES "^([0-9]+[a-z]?)-(real|virtual)$")
            message(FATAL_ERROR "BERTH_CUDA_ARCHITECTURES: '${wanted}' is neither NN-real nor NN-virtual")
        endif()
        set(number ${CMAKE_MATCH_1})
        set(prefix sm)
        if(CMAKE_MATCH_2 STREQUAL "virtual")
            set(prefix compute)
        endif()
        string(REGEX REPLACE "[a-z]" "" plain ${number})
        if("${BERTH_NVCC_KNOWS}" MATCHES "compute_${plain}")
            list(APPEND BERTH_KERNEL_FLAGS -gencode arch=compute_${number},code=${prefix}_${number})
        endif()
    endforeach()
endif()
set(BERTH_KERNEL_BASE_FLAGS --fatbin -std=c++20 -O3 -fmad=false -ccbin ${CMAKE_CXX_COMPILER})
# Kernels that steer graphs are linked with cudadevrt, which not every nvcc comes with.
set(BERTH_KERNEL_LINK_FLAGS -rdc=true -dlink -lcudadevrt)

# berth_try_kernel(KNOWN WITHOUT CODE FLAGS...): one try tells whether nvcc makes an image of CODE, with
# our compiler as its host's; said once for each nvcc and set of architectures, which KNOWN then holds.
# WITHOUT: what is not to be had if it does not.
function(berth_try_kernel known without code)
    if("${${known}}" STREQUAL "${BERTH_NVCC};${BERTH_KERNEL_FLAGS}")
        return()
    endif()
    file(WRITE ${CMAKE_BINARY_DIR}/nvcc_check/${known}.cu "${code}")
    execute_process(
        COMMAND ${BERTH_NVCC} ${BERTH_KERNEL_BASE_FLAGS} ${BERTH_KERNEL_FLAGS} ${ARGN} ${known}.cu -o ${known}.fatbin
        WORKING_DIRECTORY ${CMAKE_BINARY_DIR}/nvcc_check
        RESULT_VARIABLE rc OUTPUT_VARIABLE said ERROR_VARIABLE said)
    if(rc EQUAL 0)
        set(${known} "${BERTH_NVCC};${BERTH_KERNEL_FLAGS}" CACHE INTERNAL "nvcc that was tried")
    else()
        message(STATUS "${BERTH_NVCC} does not ${without}: ${said}")
    endif()
endfunction()

if(BERTH_KERNEL_FLAGS)
    berth_try_kernel(BERTH_NVCC_WORKS "compile a kernel"
        "#include <cuda_fp8.h>\n#include <cstdint>\nextern \"C\" __global__ void check(uint32_t* to) { *to = 1; }\n")
    if(NOT "${BERTH_NVCC_WORKS}" STREQUAL "${BERTH_NVCC};${BERTH_KERNEL_FLAGS}")
        set(BERTH_KERNEL_FLAGS)
    endif()
endif()
if(BERTH_KERNEL_FLAGS)
    message(STATUS "CUDA kernels: ${BERTH_NVCC}, ${BERTH_CUDA_ARCHITECTURES}")
else()
    message(STATUS "CUDA kernels: no usable nvcc, building without; the CPU quantises and hashes for GPUs")
endif()
set(BERTH_KERNELS_LINK OFF)
if(BERTH_KERNEL_FLAGS)
    berth_try_kernel(BERTH_NVCC_LINKS "link a kernel, graphs cannot look at the gate"
        "extern \"C\" __global__ void check(unsigned long long at) { cudaGraphSetConditional(at, 1); }\n"
        ${BERTH_KERNEL_LINK_FLAGS})
    if("${BERTH_NVCC_LINKS}" STREQUAL "${BERTH_NVCC};${BERTH_KERNEL_FLAGS}")
        set(BERTH_KERNELS_LINK ON)
    endif()
endif()

function(berth_compile_kernels source image)
    if(NOT BERTH_KERNEL_FLAGS OR NOT TARGET berth_dep_cuda)
        return()
    endif()
    get_filename_component(name ${source} NAME_WE)
    set(from ${CMAKE_CURRENT_SOURCE_DIR}/${source})
    set(fatbin ${CMAKE_CURRENT_BINARY_DIR}/${name}.fatbin)
    add_custom_command(OUTPUT ${fatbin}
        COMMAND ${BERTH_NVCC} ${BERTH_KERNEL_BASE_FLAGS} ${BERTH_KERNEL_FLAGS} ${ARGN} ${from} -o ${fatbin}
        DEPENDS ${from}
        COMMENT "Compiling kernels of ${source}"
        VERBATIM)
    set_source_files_properties(${image} PROPERTIES
        OBJECT_DEPENDS ${fatbin}
        COMPILE_DEFINITIONS "BERTH_KERNEL_IMAGE=\"${fatbin}\"")
endfunction()

function(berth_kernels target source image)
    berth_compile_kernels(${source} ${image})
endfunction()

# The same for kernels that steer graphs; IMAGE is empty where they cannot be linked.
function(berth_linked_kernels target source image)
    if(BERTH_KERNELS_LINK)
        berth_compile_kernels(${source} ${image} ${BERTH_KERNEL_LINK_FLAGS})
    endif()
endfunction()
