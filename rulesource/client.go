package rulesource

import (
	"bytes"
	"cmp"
	"compress/gzip"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/url"
	"slices"
	"strings"
	"time"

	"github.com/penstock-io/penstock/internal/secrets"
	"github.com/penstock-io/penstock/rules"
)

// The bounds of one request. A server that keeps to none of them costs at most this much.
const (
	maxBody      = 2 * rules.MaxFileBytes // rules in JSON and base64 are larger than as text
	maxHeader    = 64 << 10
	maxRedirects = 3
	answerTime   = 10 * time.Second // without the time that a long poll was asked to take
	holdTime     = 50 * time.Second // of a long poll: shorter than what proxies allow
)

// A client sends requests to one server at a time, the next one after a failure.
type client struct {
	http        *http.Client
	servers     []string
	at          int // index of the server in use
	credentials func() (string, error)
	token       string   // of a login to the server in use; "" before it
	query       []string // of the URL, which may be secret
	sent        []string // credentials, in the forms in which they were sent since [client.forget]
}

func newClient(l *location, credentials func() (string, error)) *client {
	c := &client{servers: l.servers}
	c.credentials = func() (string, error) {
		if credentials == nil {
			return "", nil
		}
		text, err := credentials()
		text = strings.TrimSpace(text) // of the line in a file
		_, password, _ := strings.Cut(text, ":")
		c.sent = append(c.sent, text, password)
		return text, err
	}
	if l.isHTTP() {
		c.query = secretQuery(l)
	}
	dialer := &net.Dialer{Timeout: 5 * time.Second, KeepAlive: 15 * time.Second}
	transport := &http.Transport{
		Proxy: http.ProxyFromEnvironment, DialContext: dialer.DialContext, TLSClientConfig: l.tls, ForceAttemptHTTP2: true,
		TLSHandshakeTimeout: 5 * time.Second, MaxResponseHeaderBytes: maxHeader,
		DisableKeepAlives: true, // else net/http prints what comes after an answer on standard error
	}
	c.http = &http.Client{Transport: transport, CheckRedirect: checkRedirect}
	return c
}

// secretQuery returns the query of a URL and those of its values that are no words that errors have, too.
func secretQuery(l *location) []string {
	const word = 8
	found := []string{l.raw}
	for _, texts := range l.query {
		found = append(found, slices.DeleteFunc(slices.Clone(texts), func(text string) bool { return len(text) < word })...)
	}
	return found
}

// forget begins a fetch, after which only what is sent in it can be in an error.
func (c *client) forget() { c.sent = []string{c.token} }

// hide returns an error without credentials and without the query of the URL, which a server may repeat anywhere in its answer.
func (c *client) hide(err error) error {
	forms := secrets.Of(slices.Concat(c.query, c.sent)...)
	all, ok := errors.AsType[rules.Errors](err)
	if !ok {
		return forms.Error(err)
	}
	shown := make(rules.Errors, len(all))
	for i, e := range all {
		shown[i] = &rules.Error{File: forms.Hide(e.File), Line: e.Line, Reason: forms.Hide(e.Reason)}
	}
	return shown
}

// checkRepeats refuses rules with credentials in them: names of rules are in logs, metrics and pages.
func (c *client) checkRepeats(files []rules.File) error {
	forms := secrets.Of(c.sent...)
	for _, f := range files {
		if forms.In(f.Text) || forms.In([]byte(f.Name)) {
			return errors.New("the rules contain the credentials that were sent")
		}
	}
	return nil
}

// checkRedirect refuses redirects that would send credentials to another host, or in plain text.
func checkRedirect(r *http.Request, via []*http.Request) error {
	switch first := via[0].URL; {
	case r.URL.Host != first.Host || r.URL.Scheme != first.Scheme:
		return errors.New("redirects to another host are refused")
	case len(via) > maxRedirects:
		return errors.New("too many redirects")
	}
	return nil
}

// fail makes the next server the one in use.
func (c *client) fail() { c.at, c.token = (c.at+1)%len(c.servers), "" }

// A request is one of HTTP; with hold it may take so much longer.
type request struct {
	method, target string // GET if there is no method; the target is a path with its query
	body           string
	header         http.Header
	hold           time.Duration
}

// A statusError is an answer other than 200.
type statusError struct{ status int }

func (e *statusError) Error() string { return fmt.Sprintf("status %d", e.status) }

func hasStatus(err error, statuses ...int) bool {
	var s *statusError
	return errors.As(err, &s) && slices.Contains(statuses, s.status)
}

// do returns the body and the header of an answer. Errors contain no URL: its query may be
// secret; of what the server wrote, which may repeat what was sent, [client.hide] leaves out the secrets.
func (c *client) do(ctx context.Context, r request) (body []byte, header http.Header, err error) {
	err = c.stream(ctx, r, func(answer *http.Response, unpacked io.Reader) error {
		header = answer.Header
		if !endIsMarked(answer) {
			return errors.New("the answer has neither a length nor chunks, so it may be cut")
		}
		body, err = io.ReadAll(io.LimitReader(unpacked, maxBody+1))
		if err == nil && len(body) > maxBody {
			err = fmt.Errorf("answer is larger than %d bytes", maxBody)
		}
		return err
	})
	return body, header, err
}

// endIsMarked reports whether an answer that is cut can be told from a whole one. If only the end of the connection ends it, a
// server or proxy that dies makes a shorter one, over TLS too, where Go accepts an end without close_notify. Gzip does not mark the
// end either: it may have several members, and be cut between two.
func endIsMarked(answer *http.Response) bool {
	return answer.ProtoMajor > 1 || answer.ContentLength >= 0 || len(answer.TransferEncoding) > 0
}

// unpack returns the body of an answer. The client does so itself because net/http forgets the length of what it unpacks.
func unpack(answer *http.Response) (io.Reader, error) {
	if !strings.EqualFold(answer.Header.Get("Content-Encoding"), "gzip") {
		return answer.Body, nil
	}
	return gzip.NewReader(answer.Body)
}

// stream sends a request, and reads the answer while it arrives.
func (c *client) stream(ctx context.Context, r request, read func(*http.Response, io.Reader) error) error {
	ctx, cancel := context.WithTimeout(ctx, r.hold+answerTime)
	defer cancel()
	sent, err := http.NewRequestWithContext(ctx, r.method, c.servers[c.at]+r.target, strings.NewReader(r.body))
	if err != nil {
		return errors.New("the path is no valid URL")
	}
	if r.header != nil {
		sent.Header = r.header
	}
	sent.Header.Set("User-Agent", "penstock")
	sent.Header.Set("Accept-Encoding", "gzip")
	proof := sent.Header.Get("Authorization")
	c.sent = append(c.sent, proof, proof[strings.LastIndexAny(proof, " :")+1:])
	answer, err := c.http.Do(sent)
	if err != nil {
		return withoutURL(err)
	}
	defer func() { _ = answer.Body.Close() }() // nothing was written
	if answer.StatusCode != http.StatusOK {
		return &statusError{answer.StatusCode}
	}
	body, err := unpack(answer)
	if err != nil {
		return err
	}
	return read(answer, body)
}

func withoutURL(err error) error {
	if about, ok := errors.AsType[*url.Error](err); ok {
		return about.Err
	}
	return err
}

// json sends a request, decodes the answer, and returns its header.
func (c *client) json(ctx context.Context, r request, into any) (http.Header, error) {
	body, header, err := c.do(ctx, r)
	if err == nil && json.NewDecoder(bytes.NewReader(body)).Decode(into) != nil {
		err = errors.New("the answer is not the JSON that this server sends")
	}
	return header, err
}

// login gets a token, if there are credentials and no token yet.
func (c *client) login(ctx context.Context, ask func(user, password string) request) error {
	text, err := c.credentials()
	if err != nil || text == "" || c.token != "" {
		return err
	}
	user, password, ok := strings.Cut(text, ":")
	if !ok {
		return errors.New("credentials: want user:password")
	}
	var answer struct{ Token, AccessToken string } // of etcd, of Nacos
	_, err = c.json(ctx, ask(user, password), &answer)
	c.token = cmp.Or(answer.Token, answer.AccessToken)
	c.sent = append(c.sent, c.token)
	return err
}
