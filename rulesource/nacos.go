package rulesource

import (
	"context"
	"crypto/md5" //nolint:gosec // what Nacos identifies content by; nothing depends on it being hard to forge
	"encoding/hex"
	"fmt"
	"net/http"
	"net/url"
	"strings"
	"time"

	"github.com/penstock-io/penstock/rules"
)

// A nacosConfig is a configuration in Nacos. Versions 1 and 2 have a long poll that compares the
// checksum of the content. Version 3 (?api=v3) has none over HTTP, so it is asked at intervals.
type nacosConfig struct {
	group, dataID, namespace string
	v3                       bool
}

func openNacos(l *location) (protocol, error) {
	parts, err := l.parts("GROUP/DATA_ID")
	if err != nil {
		return nil, err
	}
	s := &nacosConfig{group: parts[0], dataID: parts[1], namespace: l.take("namespace")}
	switch api := l.take("api"); api {
	case "", "v1":
	case "v3":
		s.v3 = true
	default:
		return nil, fmt.Errorf("parameter api: %.20q: want v1 or v3", api)
	}
	return s, nil
}

func (s *nacosConfig) pause(poll time.Duration) time.Duration {
	if s.v3 {
		return polling{}.pause(poll)
	}
	return blocking{}.pause(poll)
}

func (s *nacosConfig) fetch(ctx context.Context, c *client, version string) ([]rules.File, string, error) {
	text, err := s.fetchAs(ctx, c, version)
	if hasStatus(err, http.StatusUnauthorized, http.StatusForbidden) && c.token != "" { // the token has expired
		c.token = ""
		text, err = s.fetchAs(ctx, c, version)
	}
	if hasStatus(err, http.StatusNotFound) {
		err = errNoKey
	}
	if err != nil {
		return nil, "", err
	}
	sum := md5.Sum(text) //nolint:gosec // see above
	return []rules.File{{Text: text}}, hex.EncodeToString(sum[:]), nil
}

func (s *nacosConfig) fetchAs(ctx context.Context, c *client, version string) ([]byte, error) {
	if err := s.login(ctx, c); err != nil {
		return nil, err
	}
	if s.v3 {
		return s.getV3(ctx, c)
	}
	if version != "" {
		if err := s.listen(ctx, c, version); err != nil {
			return nil, err
		}
	}
	query := url.Values{"dataId": {s.dataID}, "group": {s.group}, "tenant": {s.namespace}}
	text, _, err := c.do(ctx, s.request(c, http.MethodGet, "/nacos/v1/cs/configs", query))
	return text, err
}

// listen waits until the content has another checksum than the version, or the server has waited for long enough.
func (s *nacosConfig) listen(ctx context.Context, c *client, version string) error {
	const field, end = "\x02", "\x01"
	r := s.request(c, http.MethodPost, "/nacos/v1/cs/configs/listener", url.Values{})
	r.body = url.Values{"Listening-Configs": {strings.Join([]string{s.dataID, s.group, version, s.namespace}, field) + end}}.Encode()
	r.header.Set("Content-Type", "application/x-www-form-urlencoded")
	r.header.Set("Long-Pulling-Timeout", fmt.Sprint(holdTime.Milliseconds()))
	r.hold = holdTime
	_, _, err := c.do(ctx, r)
	return err
}

func (s *nacosConfig) getV3(ctx context.Context, c *client) ([]byte, error) {
	var answer struct{ Data struct{ Content *string } }
	query := url.Values{"dataId": {s.dataID}, "groupName": {s.group}, "namespaceId": {s.namespace}}
	if err := c.json(ctx, s.request(c, http.MethodGet, "/nacos/v3/client/cs/config", query), &answer); err != nil {
		return nil, err
	}
	if answer.Data.Content == nil {
		return nil, errNoKey
	}
	return []byte(*answer.Data.Content), nil
}

func (s *nacosConfig) request(c *client, method, path string, query url.Values) request {
	r := request{method: method, header: http.Header{}}
	if c.token != "" {
		query.Set("accessToken", c.token)
	}
	r.target = path + "?" + query.Encode()
	return r
}

// login gets a token, if there are credentials and no token yet.
func (s *nacosConfig) login(ctx context.Context, c *client) error {
	user, password, err := c.userPassword()
	if err != nil || user == "" || c.token != "" {
		return err
	}
	r := request{method: http.MethodPost, target: "/nacos/v1/auth/login", header: http.Header{}}
	if s.v3 {
		r.target = "/nacos/v3/auth/user/login"
	}
	r.body = url.Values{"username": {user}, "password": {password}}.Encode()
	r.header.Set("Content-Type", "application/x-www-form-urlencoded")
	var answer struct{ AccessToken string }
	err = c.json(ctx, r, &answer)
	c.token = answer.AccessToken
	return err
}
