#!/bin/sh
# The layout of linear-nft.sh as input of `iptables-restore --noflush`. Its first chain, $name, is unused until a rule
# of the chain FORWARD jumps to it.
#
#   linear-iptables.sh NAME POLICIES SERVER PORT
set -eu
name=$1 policies=$2 server=$3 port=$4
middle=$((policies / 2))

echo "*filter"
echo ":$name -"
echo ":$name-pod -"
i=0
while [ $i -lt "$policies" ]; do
  if [ $i -eq $middle ]; then own=$port; else own=$((10000 + i)); fi
  echo ":$name-policy-$i -"
  echo "-A $name-policy-$i -p udp --dport $own -m set --match-set $name-$i src -j ACCEPT"
  i=$((i + 1))
done

i=0
while [ $i -lt "$policies" ]; do
  echo "-A $name-pod -j $name-policy-$i"
  i=$((i + 1))
done
echo "-A $name-pod -j DROP"

# Ten pods on the node, this one in the middle.
echo "-A $name -m conntrack --ctstate ESTABLISHED,RELATED -j ACCEPT"
for other in 1 2 3 4; do echo "-A $name -d 10.64.0.$other -g $name-pod"; done
echo "-A $name -d $server -g $name-pod"
for other in 5 6 7 8 9; do echo "-A $name -d 10.64.0.$other -g $name-pod"; done
echo "COMMIT"
