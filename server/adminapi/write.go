package adminapi

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"

	"github.com/penstock-io/penstock/server/internal/httpserver"
)

func writeText(w http.ResponseWriter, text string) {
	w.Header().Set("Content-Type", "text/plain; charset=utf-8")
	_, _ = io.WriteString(w, text) // fails only if the client has disconnected
}

// answer returns a handler that writes the response of a function, or the problem of its error.
func answer[T any](decide func(*http.Request) (T, error), write func(http.ResponseWriter, int, any)) http.HandlerFunc {
	return func(w http.ResponseWriter, r *http.Request) {
		response, err := decide(r)
		respond(w, response, err, write)
	}
}

// respond writes a response, or the problem of an error.
func respond(w http.ResponseWriter, response any, err error, write func(http.ResponseWriter, int, any)) {
	if err != nil {
		httpserver.WriteProblem(w, problemOf(err))
		return
	}
	write(w, http.StatusOK, response)
}

func writeJSON(w http.ResponseWriter, status int, v any) {
	w.Header().Set("Content-Type", "application/json")
	w.WriteHeader(status)
	e := json.NewEncoder(w)
	e.SetIndent("", "  ")
	_ = e.Encode(v) // fails only if the client has disconnected
}

// writeCompactJSON writes a response that programs poll.
func writeCompactJSON(w http.ResponseWriter, status int, v any) {
	w.Header().Set("Content-Type", "application/json")
	w.WriteHeader(status)
	_ = json.NewEncoder(w).Encode(v) // fails only if the client has disconnected
}

// decodeJSON decodes the one JSON object of a body, which has no other fields than v. The example
// says what a body looks like.
func decodeJSON(body io.Reader, v any, example string) error {
	d := json.NewDecoder(body)
	d.DisallowUnknownFields()
	if err := d.Decode(v); err != nil {
		return fmt.Errorf("want JSON such as %s: %w", example, withoutGoTypes(err))
	}
	if _, err := d.Token(); !errors.Is(err, io.EOF) {
		return errors.New("want one JSON object")
	}
	return nil
}

// withoutGoTypes returns an error of the decoder in the caller's terms: a value of the
// wrong kind is named by its field, and not by the type that it is decoded into.
func withoutGoTypes(err error) error {
	var wrong *json.UnmarshalTypeError
	switch {
	case !errors.As(err, &wrong):
		return err
	case wrong.Field == "":
		return fmt.Errorf("got %s", wrong.Value)
	}
	return fmt.Errorf("%s: got %s", wrong.Field, wrong.Value)
}
