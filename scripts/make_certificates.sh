#!/bin/sh
# Makes an authority and certificates for a robot, a trainer and an operator, for a link that leaves the computer.
#   scripts/make_certificates.sh FOLDER ROBOT_HOST...      (names or IP addresses under which the robot is reached)
# Copy ca.pem with robot.pem and robot.key to the robot, with trainer.* to the trainer, with operator.* to whoever may
# acknowledge faults. Keep ca.key off all of them. The robot tells them apart by the common name in the certificate:
# `trainer` may do everything but acknowledge, `operator` may look, stop and acknowledge, any other name nothing.
set -eu
[ $# -ge 2 ] || { echo "usage: $0 FOLDER ROBOT_HOST..." >&2; exit 2; }
folder=$1; shift
days=825
names=""
for host in "$@"; do
    case $host in
        *[!0-9.]*) kind=DNS ;;
        *) kind=IP ;;
    esac
    names="${names:+$names,}$kind:$host"
done
umask 077
mkdir -p "$folder"
cd "$folder"
[ -e ca.key ] || openssl req -x509 -newkey ec -pkeyopt ec_paramgen_curve:prime256v1 -nodes -days 3650 \
    -subj "/CN=firsthand authority" -keyout ca.key -out ca.pem \
    -addext "basicConstraints=critical,CA:TRUE" -addext "keyUsage=critical,keyCertSign,cRLSign" 2>/dev/null
for who in robot trainer operator; do
    alternative="DNS:$who"
    [ "$who" = robot ] && alternative="$names"
    openssl req -newkey ec -pkeyopt ec_paramgen_curve:prime256v1 -nodes -subj "/CN=$who" \
        -keyout "$who.key" -out "$who.csr" 2>/dev/null
    printf 'subjectAltName=%s\nextendedKeyUsage=serverAuth,clientAuth\nbasicConstraints=CA:FALSE\n' \
        "$alternative" > "$who.ext"
    openssl x509 -req -in "$who.csr" -CA ca.pem -CAkey ca.key -CAcreateserial -days "$days" \
        -extfile "$who.ext" -out "$who.pem" 2>/dev/null
    rm "$who.csr" "$who.ext"
done
echo "made $(pwd)/{ca,robot,trainer,operator}.pem for $names"
