#!/bin/sh
# A runner starts a worker by flags alone; a person, or a Flex Template, names a program.
case "$1" in
    --*) exec /opt/apache/beam/boot "$@" ;;
    "") exec shardbeam --help ;;
    *) exec "$@" ;;
esac
