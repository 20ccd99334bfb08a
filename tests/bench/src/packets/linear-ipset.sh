#!/bin/sh
# The sets of peers for linear-iptables.sh, as input of `ipset restore`.
#
#   linear-ipset.sh NAME POLICIES CLIENT
set -eu
name=$1 policies=$2 client=$3
middle=$((policies / 2))

i=0
while [ $i -lt "$policies" ]; do
  if [ $i -eq $middle ]; then peers=$client; else peers=10.160.$((i / 256)).$((i % 256)); fi
  echo "create $name-$i hash:ip"
  echo "add $name-$i $peers"
  i=$((i + 1))
done
