#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# Stands in for nvidia-cuda-mps-control (a link of that name is on the PATH): with -f it is the daemon,
# else it answers one command of its standard input. The clients are the numbers in clients.txt; with
# a file named refuse it refuses to terminate them.
folder=$CUDA_MPS_PIPE_DIRECTORY
if [ "$1" = -f ]; then
    echo $$ > "$folder/nvidia-cuda-mps-control.pid"
    while :; do sleep 1; done
fi
read -r command
printf '%s\n' "$command" >> "$folder/asked.txt"
case $command in
quit) kill "$(cat "$folder/nvidia-cuda-mps-control.pid")" ;;
get_server_list) echo 4242 ;;
get_client_list*) cat "$folder/clients.txt" ;;
terminate_client*)
    # As on an H200: nothing is answered while the client is stopped.
    while grep -q '^State:.T' "/proc/${command##* }/status" 2>/dev/null; do sleep 0.05; done
    if [ -e "$folder/refuse" ]; then
        echo "Failed to terminate the client: it has exclusive work"
    fi
    ;;
esac
exit 0
