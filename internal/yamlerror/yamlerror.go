// Package yamlerror finds the line of a syntax error in YAML.
package yamlerror

import (
	"bytes"
	"regexp"
	"sort"
	"strconv"

	"go.yaml.in/yaml/v3"
)

// Locate returns the line and the message of a syntax error in a text. The YAML parser
// often names the line where the broken construct begins, far above the mistake, or no
// line at all; so unless the text is huge, the line is searched for.
func Locate(text []byte, err error) (line int, message string) {
	const huge = 256 << 10
	line, message = split(err)
	if len(text) <= huge {
		line = search(text, message)
	}
	if message == "found character that cannot start any token" && isIndentedByTab(text, line) {
		message = "found a tab: indent with spaces"
	}
	return line, message
}

// isIndentedByTab reports whether a tab is among the white space that the line begins with.
func isIndentedByTab(text []byte, line int) bool {
	for l := range bytes.Lines(text) {
		if line--; line == 0 {
			return bytes.ContainsRune(l[:len(l)-len(bytes.TrimLeft(l, " \t"))], '\t')
		}
	}
	return false
}

var prefix = regexp.MustCompile(`^yaml: (?:line (\d+): )?`)

// split returns the line and the message of a syntax error. The parser names no line
// when it is the first.
func split(err error) (line int, message string) {
	message = err.Error()
	found := prefix.FindStringSubmatch(message)
	if found == nil {
		return 1, message
	}
	line, _ = strconv.Atoi(found[1])
	return max(1, line), message[len(found[0]):]
}

// search returns the first line up to which the text causes that message.
func search(text []byte, message string) int {
	var ends []int
	end := 0
	for line := range bytes.Lines(text) {
		end += len(line)
		ends = append(ends, end)
	}
	return 1 + sort.Search(len(ends)-1, func(i int) bool {
		decoder := yaml.NewDecoder(bytes.NewReader(text[:ends[i]]))
		for {
			var n yaml.Node
			if err := decoder.Decode(&n); err != nil {
				_, other := split(err)
				return other == message
			}
		}
	})
}
