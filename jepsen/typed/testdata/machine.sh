# Makes a machine out of this one, in the folder $1: changes are in memory and gone with it. The
# checkout $2 is in /src, and in /home/ann/quorate to be written to. The programs of $3, and those of $2's
# testdata, come before others. Folders that follow are the same as outside. Ends as a shell; with 77 if
# there can be no such machine.
set -e
mount -t tmpfs -o mode=0755 machine "$1"
mkdir "$1/changes" "$1/work" "$1/source" "$1/sourcework" "$1/root"
mount -t overlay -o "lowerdir=/,upperdir=$1/changes,workdir=$1/work" machine "$1/root" || exit 77
checkout=$2 programs=$3
cd "$1/root"
mount -t proc proc proc
mount --rbind /dev dev
mount -t tmpfs -o mode=1777 tmp tmp
mkdir -p src home/ann/quorate
mount --bind "$checkout" src
mount -t overlay -o "lowerdir=$checkout,upperdir=$1/source,workdir=$1/sourcework" source home/ann/quorate
rm -rf home/ann/quorate/bin home/ann/quorate/data home/ann/quorate/report
mkdir -p usr/local/typed
cp "$checkout"/jepsen/typed/testdata/programs/* usr/local/typed/
chmod 0755 usr/local/typed/*
if [ -n "$programs" ]; then cp "$programs/quorate" "$programs/quoratectl" usr/bin/; fi
shift 3
for same; do
	mkdir -p ".$same"
	mount --rbind "$same" ".$same"
done
ip link set lo up
for host in 1 2 3; do
	ip address add "10.0.0.$host/32" dev lo
	echo "10.0.0.$host n$host.example.org" >> etc/hosts
done
echo 10.0.0.1 queues.example.org >> etc/hosts
exec chroot . /bin/bash -c 'cd /home/ann; exec /bin/bash --noprofile --norc'
