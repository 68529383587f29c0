package adminapi

import (
	"fmt"
	"math"
	"net/http"
	"slices"
	"strconv"
	"strings"

	"github.com/penstock-io/penstock/rules"
	"github.com/penstock-io/penstock/server/internal/httpserver"
)

// decodeQuery calls the function of each parameter of a query. A parameter without a function, or
// a second one of the same name, is an error.
func decodeQuery(r *http.Request, set map[string]func(string) error) error {
	_, err := decodeWithEntries(r, set, nil)
	return err
}

// decodeWithEntries is decodeQuery for a query in which parameters without a function are the
// entries of a descriptor. It returns which of the others there are, also with an error.
func decodeWithEntries(
	r *http.Request, set map[string]func(string) error, entries *[]rules.Entry,
) (has map[string]bool, err error) {
	parameters, err := httpserver.ParseQuery(r.URL.RawQuery, maxParameters)
	if err != nil {
		return nil, err
	}
	has = map[string]bool{}
	for _, p := range parameters {
		decode := set[p.Name]
		switch {
		case decode == nil && entries != nil:
			*entries = append(*entries, rules.Entry{Key: p.Name, Value: p.Value})
			continue
		case decode == nil:
			return has, &parameterError{p.Name, fmt.Sprintf("unknown parameter %.80q", p.Name)}
		case has[p.Name]:
			return has, &parameterError{p.Name, "duplicate parameter"}
		}
		has[p.Name] = true
		if err := decode(p.Value); err != nil {
			return has, &parameterError{p.Name, err.Error()}
		}
	}
	return has, nil
}

// choice returns a function that accepts some words.
func choice[T ~string](s *T, words ...T) func(string) error {
	return func(text string) error {
		if *s = T(text); !slices.Contains(words, *s) {
			return fmt.Errorf("want %s", joined(words))
		}
		return nil
	}
}

// number returns a function that accepts a number from least to most.
func number(n *int, least, most int) func(string) error {
	return func(text string) (err error) {
		if *n, err = strconv.Atoi(text); err != nil || *n < least || *n > most {
			return fmt.Errorf("want a whole number from %d to %d", least, most)
		}
		return nil
	}
}

// text returns a function that accepts any text.
func text(s *string) func(string) error { return short(s, math.MaxInt) }

// short returns a function that accepts a text of at most so many bytes.
func short(s *string, most int) func(string) error {
	return func(text string) error {
		if len(text) > most {
			return fmt.Errorf("want at most %d bytes", most)
		}
		*s = text
		return nil
	}
}

func joined[T ~string](words []T) (text string) {
	for _, word := range words {
		text += ", " + string(word)
	}
	return strings.TrimPrefix(text, ", ")
}
