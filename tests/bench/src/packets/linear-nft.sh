#!/bin/sh
# The layout with a chain for each pod and in it a jump for each policy, as a script for `nft -f`. It says the same as
# Ringfence's rules do in the same run: policy N allows its own peers to send to its own UDP port, and the one in the
# middle allows the flow that is measured.
#
#   linear-nft.sh TABLE POLICIES CLIENT SERVER PORT
#
# It is kept as cheap as such a layout can be: established flows are accepted first of all, a policy that allows
# accepts at once, and nothing is marked, logged or counted.
set -eu
table=$1 policies=$2 client=$3 server=$4 port=$5
middle=$((policies / 2))

echo "table inet $table {"
i=0
while [ $i -lt "$policies" ]; do
  if [ $i -eq $middle ]; then peers=$client own=$port; else peers=10.160.$((i / 256)).$((i % 256)) own=$((10000 + i)); fi
  echo "  set peers-$i { type ipv4_addr; elements = { $peers } }"
  echo "  chain policy-$i { ip saddr @peers-$i udp dport $own accept; }"
  i=$((i + 1))
done

echo "  chain pod {"
i=0
while [ $i -lt "$policies" ]; do
  echo "    jump policy-$i"
  i=$((i + 1))
done
echo "    drop"
echo "  }"

# Ten pods on the node, this one in the middle.
echo "  chain forward {"
echo "    type filter hook forward priority filter; policy accept;"
echo "    ct state established,related accept"
for other in 1 2 3 4; do echo "    ip daddr 10.64.0.$other goto pod"; done
echo "    ip daddr $server goto pod"
for other in 5 6 7 8 9; do echo "    ip daddr 10.64.0.$other goto pod"; done
echo "  }"
echo "}"
