package main

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"strings"
	"unicode"
	"unicode/utf16"
)

// maxAdminResponse is more than any response of the admin API has: the longest lists all
// overrides.
const maxAdminResponse = 512 << 20

// An adminRequest is a request to the admin API.
type adminRequest struct {
	method, path string
	query        url.Values
	contentType  string // of the body, if there is one
	body         []byte
}

// queryOf returns the parameters that have a value. Names and values alternate.
func queryOf(pairs ...string) url.Values {
	query := url.Values{}
	for i := 0; i < len(pairs); i += 2 {
		if pairs[i+1] != "" {
			query.Set(pairs[i], pairs[i+1])
		}
	}
	return query
}

// admin sends a request to the admin API and returns the body of its response. Unless it is
// nil, the body is also decoded into a variable.
func (at *connection) admin(ctx context.Context, r adminRequest, into any) ([]byte, error) {
	response, text, err := at.send(ctx, r)
	switch {
	case err != nil:
		return nil, err
	case response.StatusCode != http.StatusOK:
		return nil, at.adminError(response, text)
	case into != nil && json.Unmarshal(text, into) != nil:
		return nil, at.notJSON(text)
	}
	return text, nil
}

// send sends a request to the admin API and returns the response with its body.
func (at *connection) send(ctx context.Context, r adminRequest) (*http.Response, []byte, error) {
	u := at.url.JoinPath(r.path)
	u.RawQuery = r.query.Encode()
	request, err := http.NewRequestWithContext(ctx, r.method, u.String(), bytes.NewReader(r.body))
	if err != nil {
		return nil, nil, err
	}
	if r.contentType != "" {
		request.Header.Set("Content-Type", r.contentType)
	}
	if at.token != "" {
		request.Header.Set("Authorization", "Bearer "+at.token)
	}
	response, err := at.client.Do(request)
	var failed *url.Error
	if errors.As(err, &failed) {
		return nil, nil, fmt.Errorf("%s: %w", at.url, failed.Err) // without the key
	}
	if err != nil {
		return nil, nil, err
	}
	defer func() { _ = response.Body.Close() }()
	text, err := io.ReadAll(io.LimitReader(response.Body, maxAdminResponse))
	if err == nil && len(text) == maxAdminResponse {
		err = fmt.Errorf("the response is longer than %d bytes", maxAdminResponse)
	}
	return response, text, err
}

// adminError returns the error of a response other than 200.
func (at *connection) adminError(response *http.Response, text []byte) error {
	var problem struct{ Title, Detail string }
	isProblem := json.Unmarshal(text, &problem) == nil && problem.Title != ""
	switch status := response.StatusCode; {
	case status == http.StatusUnauthorized && at.token == "":
		return errors.New("the server requires its token: set --token-file")
	case status == http.StatusUnauthorized:
		return errors.New("the server rejected the token: it is not the server's")
	case !isProblem:
		return at.notAdmin(response, text)
	case strings.HasPrefix(problem.Detail, "no such path"):
		return fmt.Errorf("%s is not an admin listener: it has no %s; %s", at.url, response.Request.URL.Path, wantAdmin)
	case status == http.StatusNotFound || status == http.StatusBadRequest:
		return errors.New(problem.Detail)
	default:
		return errors.New(strings.TrimSuffix(fmt.Sprintf("the server returned %d: %s", status, problem.Detail), ": "))
	}
}

const wantAdmin = "set --server to the URL of the listener that penstock serve has as --admin, such as http://127.0.0.1:6070"

// notAdmin returns the error of a response that the admin API does not give.
func (at *connection) notAdmin(response *http.Response, text []byte) error {
	return fmt.Errorf("%s is not an admin listener: it returned %s: %.200q; %s", at.url, response.Status, strings.TrimSpace(string(text)), wantAdmin)
}

// notJSON returns the error of a body that the admin API does not give.
func (at *connection) notJSON(text []byte) error {
	return fmt.Errorf("%s is not an admin listener: it returned %.200q; %s", at.url, text, wantAdmin)
}

// printJSON prints a response. What a terminal could act on is in strings, where JSON has escapes for it.
func printJSON(w io.Writer, text []byte) {
	var b strings.Builder
	for _, r := range string(bytes.TrimSpace(text)) {
		switch {
		case unicode.IsPrint(r) || r == '\n' || r == '\t':
			b.WriteRune(r)
		default:
			for _, unit := range utf16.Encode([]rune{r}) {
				fmt.Fprintf(&b, `\u%04x`, unit)
			}
		}
	}
	fmt.Fprintln(w, b.String())
}
