#!/bin/sh
# Makes an authority and certificates for a robot, a trainer and an operator, for a link that leaves the computer, and
# the key that signs policies.
#   scripts/make_certificates.sh FOLDER ROBOT_HOST...      (names or IP addresses under which the robot is reached)
#   scripts/make_certificates.sh FOLDER --revoke trainer   (or operator: its certificate is lost or stolen)
# Copy ca.pem, allowed and policy.pub with robot.pem and robot.key to the robot, ca.pem and policy.key with trainer.* to
# the trainer, ca.pem with operator.* to whoever may acknowledge faults. Keep ca.key off all of them. The robot tells
# them apart by the common name in the certificate: a trainer may do everything but acknowledge, an operator may look,
# stop and acknowledge, any other name nothing.
#
# Revoking makes a new certificate with a new common name (trainer.2) and names only that one in `allowed`. Copy
# `allowed` to the robot and restart `serve`; the old certificate then gets nothing done. Whoever has the robot's own
# key, ca.key or policy.key needs a new folder: make all of it again.
set -eu
usage() { echo "usage: $0 FOLDER ROBOT_HOST... | $0 FOLDER --revoke trainer|operator" >&2; exit 2; }
[ $# -ge 2 ] || usage
folder=$1; shift
days=825

# issue FILE COMMON_NAME ALTERNATIVE_NAMES
issue() {
    openssl req -newkey ec -pkeyopt ec_paramgen_curve:prime256v1 -nodes -subj "/CN=$2" \
        -keyout "$1.key" -out "$1.csr" 2>/dev/null
    printf 'subjectAltName=%s\nextendedKeyUsage=serverAuth,clientAuth\nbasicConstraints=CA:FALSE\n' "$3" > "$1.ext"
    openssl x509 -req -in "$1.csr" -CA ca.pem -CAkey ca.key -CAcreateserial -days "$days" \
        -extfile "$1.ext" -out "$1.pem" 2>/dev/null
    rm "$1.csr" "$1.ext"
}

umask 077
if [ "$1" = --revoke ]; then
    [ $# -eq 2 ] || usage
    who=$2
    case $who in trainer|operator) ;; *) usage ;; esac
    cd "$folder"
    { [ -e ca.key ] && [ -e allowed ]; } || { echo "$0: $folder has no ca.key and allowed: it was not made here" >&2; exit 2; }
    old=$(sed -n "s/^$who //p" allowed)
    case $old in
        "$who") number=2 ;;
        "$who".*) number=$((${old##*.} + 1)) ;;
        *) echo "$0: $folder/allowed has no line for $who" >&2; exit 2 ;;
    esac
    issue "$who" "$who.$number" "DNS:$who"
    sed "s/^$who .*/$who $who.$number/" allowed > allowed.new
    mv allowed.new allowed
    echo "revoked $old; copy $(pwd)/allowed to the robot and restart serve, and $who.pem and $who.key to the $who"
    exit
fi
names=""
for host in "$@"; do
    case $host in
        *[!0-9.]*) kind=DNS ;;
        *) kind=IP ;;
    esac
    names="${names:+$names,}$kind:$host"
done
mkdir -p "$folder"
cd "$folder"
[ -e ca.key ] || openssl req -x509 -newkey ec -pkeyopt ec_paramgen_curve:prime256v1 -nodes -days 3650 \
    -subj "/CN=firsthand authority" -keyout ca.key -out ca.pem \
    -addext "basicConstraints=critical,CA:TRUE" -addext "keyUsage=critical,keyCertSign,cRLSign" 2>/dev/null
[ -e allowed ] || printf 'trainer trainer\noperator operator\n' > allowed
if [ ! -e policy.key ]; then
    openssl genpkey -algorithm ed25519 -out policy.key 2>/dev/null
    openssl pkey -in policy.key -pubout -out policy.pub
fi
issue robot robot "$names"
for who in trainer operator; do
    issue "$who" "$(sed -n "s/^$who //p" allowed)" "DNS:$who"
done
echo "made $(pwd)/{ca,robot,trainer,operator}.pem, allowed and policy.{key,pub} for $names"
