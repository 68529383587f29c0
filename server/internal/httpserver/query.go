package httpserver

import (
	"errors"
	"fmt"
	"net/url"
	"strings"
)

// A Parameter is one of a URL's.
type Parameter struct{ Name, Value string }

// ErrBadQuery means that the query of a URL cannot be read.
var ErrBadQuery = errors.New("bad query")

// ParseQuery returns the parameters of a URL in their order, at most so many. A name
// without a value has the empty one.
func ParseQuery(raw string, most int) ([]Parameter, error) {
	var parameters []Parameter
	for part := range strings.SplitSeq(raw, "&") {
		if part == "" {
			continue
		}
		if len(parameters) == most {
			return nil, fmt.Errorf("%w: more than %d parameters", ErrBadQuery, most)
		}
		p, err := parameter(part)
		if err != nil {
			return nil, err
		}
		parameters = append(parameters, p)
	}
	return parameters, nil
}

func parameter(text string) (p Parameter, err error) {
	name, value, _ := strings.Cut(text, "=")
	if p.Name, err = url.QueryUnescape(name); err != nil {
		return p, fmt.Errorf("%w: %w", ErrBadQuery, err)
	}
	if p.Value, err = url.QueryUnescape(value); err != nil {
		return p, fmt.Errorf("%w: %s: %w", ErrBadQuery, p.Name, err)
	}
	return p, nil
}
