#!/bin/sh
# Runs a compile command after removing the file that it writes. A precompiled header of an earlier build would otherwise be
# an input of its successor, and ccache would keep that under another key than the same header made in a fresh checkout.
for argument; do
  [ "$previous" = -o ] && rm -f "$argument"
  previous=$argument
done
exec "$@"
