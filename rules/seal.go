package rules

import (
	"bytes"
	"crypto/sha256"
	"encoding/hex"
	"strings"
)

// A checksum is on the first line of a file and covers everything after that line: a
// file that is cut off anywhere still has its first line, so the missing rest shows. A
// checksum at the end would be missing together with the rest.
const sealPrefix = "# sha256: "

// A sealState says whether the first line of a file is a checksum, and a right one.
type sealState int

const (
	unsealed sealState = iota
	sealed
	sealBroken // the checksum does not match the text after it
)

// Seal returns the text of a rule file with a first line that has the checksum of the
// rest, in place of such a line if the text has one. A file whose checksum does not
// match its text is incomplete and never takes effect.
func Seal(text []byte) []byte {
	if checkSeal(text) != unsealed {
		_, text, _ = bytes.Cut(text, []byte("\n"))
	}
	return append([]byte(sealPrefix+checksum(text)+"\n"), text...)
}

func checkSeal(text []byte) sealState {
	line, rest, _ := bytes.Cut(text, []byte("\n"))
	want, found := strings.CutPrefix(string(line[:min(len(line), 2*len(sealPrefix)+2*sha256.Size)]), sealPrefix)
	switch {
	case !found:
		return unsealed
	case strings.EqualFold(strings.TrimSpace(want), checksum(rest)):
		return sealed
	}
	return sealBroken
}

func checksum(text []byte) string {
	sum := sha256.Sum256(text)
	return hex.EncodeToString(sum[:])
}

const brokenSeal = "sha256 does not match the text below it: the file is incomplete, or it was edited: " +
	"'penstock rules seal' renews the line"
