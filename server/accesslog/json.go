package accesslog

import (
	"bytes"
	"encoding/json"
)

// A jsonPath is the names that lead to a value in nested objects.
type jsonPath []string

// A jsonReader finds values in a line of JSON in one pass.
type jsonReader struct {
	paths  []jsonPath
	values [][]byte // without quotes; nil if the line has none
	times  int      // of the paths lead to other times
}

const (
	maxPaths  = 64            // in a reader
	maxOthers = maxPaths - 20 // of them, beside those of the format
	maxDepth  = 8             // of objects that are searched
)

// read sets the values. It reports whether the line is an object, as far as it was read.
func (r *jsonReader) read(text []byte) bool {
	clear(r.values)
	text = bytes.TrimSpace(text)
	if len(text) < 2 || text[0] != '{' || text[len(text)-1] != '}' {
		return false
	}
	return r.object(text, 0, 1<<len(r.paths)-1) != nil
}

// object reads an object, and returns what follows it; nil if it is none. Paths of the mask lead into it.
func (r *jsonReader) object(text []byte, depth int, mask uint64) []byte {
	text = space(text[1:])
	for len(text) > 0 && text[0] != '}' {
		name, rest := stringEnd(text)
		if rest = space(rest); len(rest) == 0 || rest[0] != ':' {
			return nil
		}
		if text = r.value(space(rest[1:]), depth, r.leading(name, depth, mask)); text == nil {
			return nil
		}
		if text = space(text); len(text) > 0 && text[0] == ',' {
			text = space(text[1:])
		}
	}
	if len(text) == 0 {
		return nil
	}
	return text[1:]
}

// leading returns the paths of the mask that have a name at a depth.
func (r *jsonReader) leading(name []byte, depth int, mask uint64) (found uint64) {
	for i, p := range r.paths {
		if mask&(1<<i) != 0 && depth < len(p) && p[depth] == string(name) {
			found |= 1 << i
		}
	}
	return found
}

// value reads a value, and keeps it for the paths that end here.
func (r *jsonReader) value(text []byte, depth int, mask uint64) (rest []byte) {
	if mask != 0 && len(text) > 0 && text[0] == '{' && depth < maxDepth {
		return r.object(text, depth+1, mask)
	}
	value, rest := valueEnd(text)
	for i, p := range r.paths {
		if mask&(1<<i) != 0 && len(p) == depth+1 && r.values[i] == nil {
			r.values[i] = plain(value)
		}
	}
	return rest
}

// plain returns the text of a value: of a list, that of its first element.
func plain(value []byte) []byte {
	if len(value) > 0 && value[0] == '[' {
		value, _ = valueEnd(space(value[1:]))
	}
	switch {
	case len(value) == 0 || value[0] == '{' || string(value) == "null":
		return nil
	case value[0] != '"':
		return value
	case bytes.IndexByte(value, '\\') < 0:
		return value[1 : len(value)-1]
	}
	var text string
	if json.Unmarshal(value, &text) != nil {
		return nil
	}
	return []byte(text)
}

// stringEnd returns the contents of a string, and what follows it.
func stringEnd(text []byte) (contents, rest []byte) {
	if len(text) == 0 || text[0] != '"' {
		return nil, nil
	}
	for i := 1; i < len(text); {
		j := bytes.IndexByte(text[i:], '"')
		if j < 0 {
			break
		}
		if i += j; !isEscaped(text[1:i]) {
			return text[1:i], text[i+1:]
		}
		i++
	}
	return nil, nil
}

// valueEnd returns a value as it is written, and what follows it; nil if it does not end.
func valueEnd(text []byte) (value, rest []byte) {
	if len(text) == 0 {
		return nil, nil
	}
	switch text[0] {
	case '"':
		contents, rest := stringEnd(text)
		if rest == nil {
			return nil, nil
		}
		return text[:len(contents)+2], rest
	case '{', '[':
		return nestedEnd(text)
	}
	i := bytes.IndexAny(text, ",}] \t\r\n")
	if i <= 0 {
		return nil, nil
	}
	return text[:i], text[i:]
}

// nestedEnd is valueEnd of an object or a list.
func nestedEnd(text []byte) (value, rest []byte) {
	depth := 0
	for at := text; len(at) > 0; {
		switch at[0] {
		case '"':
			if _, at = stringEnd(at); at == nil {
				return nil, nil
			}
			continue
		case '{', '[':
			depth++
		case '}', ']':
			depth--
		}
		if at = at[1:]; depth == 0 {
			return text[:len(text)-len(at)], at
		}
	}
	return nil, nil
}

func space(text []byte) []byte {
	for len(text) > 0 && (text[0] == ' ' || text[0] == '\t') {
		text = text[1:]
	}
	return text
}
