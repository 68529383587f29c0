package rulesource

import (
	"context"
	"encoding/base64"
	"net/http"
	"strconv"
	"strings"

	"github.com/penstock-io/penstock/rules"
)

// An httpServer has the rules at a URL. The entity tag is their version: If-None-Match sends
// it back, and Prefer: wait (RFC 7240) asks the server to answer when there is another. One that
// does not wait is asked at intervals.
type httpServer struct{ target string }

func openHTTP(l *location) (protocol, error) {
	target := escape(l.path)
	if l.raw != "" {
		target += "?" + l.raw
	}
	return &httpServer{target: target}, nil
}

func (s *httpServer) fetch(ctx context.Context, c *client, version string) ([]rules.File, string, error) {
	header := http.Header{}
	if err := c.authorize(header); err != nil {
		return nil, "", err
	}
	r := request{target: s.target, header: header}
	if version != "" {
		header.Set("If-None-Match", version)
		header.Set("Prefer", "wait="+strconv.Itoa(int(holdTime.Seconds())))
		r.hold = holdTime
	}
	text, answered, err := c.do(ctx, r)
	switch {
	case version != "" && hasStatus(err, http.StatusNotModified):
		return nil, version, nil
	case err != nil:
		return nil, "", err
	}
	return []rules.File{{Text: text}}, answered.Get("Etag"), nil
}

// authorize adds credentials: user:password, or a bearer token.
func (c *client) authorize(header http.Header) error {
	text, err := c.credentials()
	switch {
	case err != nil || text == "":
		return err
	case strings.Contains(text, ":"):
		header.Set("Authorization", "Basic "+base64.StdEncoding.EncodeToString([]byte(text)))
	default:
		header.Set("Authorization", "Bearer "+text)
	}
	return nil
}
