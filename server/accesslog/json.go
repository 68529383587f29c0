package accesslog

import (
	"bytes"
	"encoding/json"
)

// A jsonReader finds values in a line of JSON in one pass.
type jsonReader struct {
	places map[string][]int // of the values of a path: the names that lead to it in nested objects, with dots between them
	values [][]byte         // without quotes; nil if the line has none
	path   []byte           // of what is read
	most   int              // the length of the longest path of a value
}

func newJSONReader(paths []string) jsonReader {
	r := jsonReader{places: map[string][]int{}, values: make([][]byte, len(paths))}
	for i, path := range paths {
		r.places[path] = append(r.places[path], i)
		r.most = max(r.most, len(path))
	}
	return r
}

// maxDepth is how deeply objects and lists may be nested, as in encoding/json.
const maxDepth = 10_000

// read sets the values. It reports whether the line is an object, as far as it was read.
func (r *jsonReader) read(text []byte) bool {
	clear(r.values)
	r.path = r.path[:0]
	text = bytes.TrimSpace(text)
	return len(text) > 1 && text[0] == '{' && text[len(text)-1] == '}' && r.value(text, 0) != nil
}

// value reads a value, and returns what follows it; nil if it is none.
func (r *jsonReader) value(text []byte, depth int) (rest []byte) {
	if len(text) > 0 && (text[0] == '{' || text[0] == '[') {
		return r.nested(text, depth+1)
	}
	value, rest := scalar(text)
	if len(r.path) > r.most { // a name of a client may be long, and have many values
		return rest
	}
	for _, i := range r.places[string(r.path)] {
		if r.values[i] == nil {
			r.values[i] = plain(value)
		}
	}
	return rest
}

// nested reads an object, or a list, whose first element has the path of the list.
func (r *jsonReader) nested(text []byte, depth int) (rest []byte) {
	isObject, end, outer := text[0] == '{', text[0]+2, len(r.path) // as the ASCII of } and ]
	text = space(text[1:])
	for len(text) > 0 && text[0] != end && depth <= maxDepth {
		if isObject {
			text = r.name(text)
		}
		text = space(r.value(text, depth))
		if r.path = r.path[:outer]; !isObject {
			r.path = append(r.path, '[') // no path of a later element
		}
		if len(text) > 0 && text[0] == ',' {
			text = space(text[1:])
		}
	}
	if r.path = r.path[:outer]; len(text) == 0 || depth > maxDepth {
		return nil
	}
	return text[1:]
}

// name adds the name of a value to the path, and returns the value with what follows it; nil if it is none.
func (r *jsonReader) name(text []byte) (value []byte) {
	name, rest := stringEnd(text)
	if rest = space(rest); len(rest) == 0 || rest[0] != ':' {
		return nil
	}
	if len(r.path) > 0 {
		r.path = append(r.path, '.')
	}
	r.path = append(r.path, name...)
	return space(rest[1:])
}

// plain returns the text of a scalar.
func plain(value []byte) []byte {
	switch {
	case len(value) == 0 || string(value) == "null":
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

// scalar returns a string, number or word as it is written, and what follows it; nil if it does not end.
func scalar(text []byte) (value, rest []byte) {
	if len(text) > 0 && text[0] == '"' {
		contents, rest := stringEnd(text)
		if rest == nil {
			return nil, nil
		}
		return text[:len(contents)+2], rest
	}
	i := bytes.IndexAny(text, ",}] \t\r\n")
	if i <= 0 {
		return nil, nil
	}
	return text[:i], text[i:]
}

func space(text []byte) []byte {
	for len(text) > 0 && (text[0] == ' ' || text[0] == '\t') {
		text = text[1:]
	}
	return text
}
