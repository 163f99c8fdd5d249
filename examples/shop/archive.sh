#!/bin/sh
# Packs the application of this example, two small scripts, as shop-RELEASE.tar.gz.
#   sh archive.sh RELEASE DIRECTORY
set -e
release=${1:?RELEASE is missing} directory=${2:?DIRECTORY is missing}
bin=$directory/shop-$release/bin
mkdir -p "$bin"
cat >"$bin/shop" <<'END'
#!/bin/sh
[ "$1" != --check ] || exec grep -q release "$2"
grep release "$1" >/run/shop/release || exit 1
exec sleep infinity
END
cat >"$bin/check" <<'END'
#!/bin/sh
[ -s /run/shop/release ] && echo "OK - running" && exit 0
echo "CRITICAL - not running"
exit 2
END
chmod 0755 "$bin/shop" "$bin/check"
tar -czf "$directory/shop-$release.tar.gz" -C "$directory" "shop-$release"
