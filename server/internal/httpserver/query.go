package httpserver

import (
	"errors"
	"fmt"
	"net/url"
	"strings"
)

// A Parameter is one name and value of a URL's query.
type Parameter struct{ Name, Value string }

// ErrBadQuery means that the query of a URL cannot be parsed.
var ErrBadQuery = errors.New("bad query")

// ParseQuery returns the parameters of a query in their order. More than limit of them
// are an error. A name without a value has the empty value.
func ParseQuery(raw string, limit int) ([]Parameter, error) {
	var parameters []Parameter
	for part := range strings.SplitSeq(raw, "&") {
		if part == "" {
			continue
		}
		if len(parameters) == limit {
			return nil, fmt.Errorf("%w: more than %d parameters", ErrBadQuery, limit)
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
		return p, fmt.Errorf("%w: invalid URL escape in a name", ErrBadQuery)
	}
	if p.Value, err = url.QueryUnescape(value); err != nil {
		return p, fmt.Errorf("%w: invalid URL escape in the value of %.80q", ErrBadQuery, p.Name)
	}
	return p, nil
}
