package adminapi

import (
	"fmt"
	"math"
	"net/http"
	"slices"
	"strconv"
	"strings"

	"github.com/penstock-io/penstock/server/internal/httpserver"
)

// decodeQuery calls the function of each parameter of a query. A parameter without a function, or
// a second one of the same name, is an error.
func decodeQuery(r *http.Request, set map[string]func(string) error) error {
	parameters, err := httpserver.ParseQuery(r.URL.RawQuery, maxParameters)
	if err != nil {
		return err
	}
	seen := map[string]bool{}
	for _, p := range parameters {
		switch {
		case set[p.Name] == nil:
			return &parameterError{p.Name, fmt.Sprintf("unknown parameter %.80q", p.Name)}
		case seen[p.Name]:
			return &parameterError{p.Name, "duplicate parameter"}
		}
		seen[p.Name] = true
		if err := set[p.Name](p.Value); err != nil {
			return &parameterError{p.Name, err.Error()}
		}
	}
	return nil
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
