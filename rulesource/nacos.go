package rulesource

import (
	"context"
	"crypto/md5" //nolint:gosec // what Nacos identifies content by; nothing depends on it being hard to forge
	"encoding/hex"
	"fmt"
	"net/http"
	"net/url"
	"strings"

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
	l.waits = !s.v3
	return s, nil
}

func (s *nacosConfig) fetch(ctx context.Context, c *client, version string) ([]rules.File, string, error) {
	text, err := s.read(ctx, c, version)
	if err != nil {
		return nil, "", orNoKey(err)
	}
	sum := md5.Sum(text) //nolint:gosec // see above
	return []rules.File{{Text: text}}, hex.EncodeToString(sum[:]), nil
}

// read waits for another version than the given one, and returns the text.
func (s *nacosConfig) read(ctx context.Context, c *client, version string) ([]byte, error) {
	if err := c.login(ctx, s.login); err != nil {
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
	text, _, err := c.do(ctx, request{target: s.target(c, "/nacos/v1/cs/configs", query)})
	return text, err
}

// listen waits until the content has another checksum than the version, or the server has waited for long enough.
func (s *nacosConfig) listen(ctx context.Context, c *client, version string) error {
	const field, end = "\x02", "\x01"
	asked := strings.Join([]string{s.dataID, s.group, version, s.namespace}, field) + end
	r := form(s.target(c, "/nacos/v1/cs/configs/listener", url.Values{}), url.Values{"Listening-Configs": {asked}})
	r.header.Set("Long-Pulling-Timeout", fmt.Sprint(holdTime.Milliseconds()))
	r.hold = holdTime
	_, _, err := c.do(ctx, r)
	return err
}

func (s *nacosConfig) getV3(ctx context.Context, c *client) ([]byte, error) {
	var answer struct{ Data struct{ Content *string } }
	query := url.Values{"dataId": {s.dataID}, "groupName": {s.group}, "namespaceId": {s.namespace}}
	if _, err := c.json(ctx, request{target: s.target(c, "/nacos/v3/client/cs/config", query)}, &answer); err != nil {
		return nil, err
	}
	if answer.Data.Content == nil {
		return nil, errNoKey
	}
	return []byte(*answer.Data.Content), nil
}

// target returns a path with its query, and with the token if there is one.
func (s *nacosConfig) target(c *client, path string, query url.Values) string {
	if c.token != "" {
		query.Set("accessToken", c.token)
	}
	return path + "?" + query.Encode()
}

func (s *nacosConfig) login(user, password string) request {
	target := "/nacos/v1/auth/login"
	if s.v3 {
		target = "/nacos/v3/auth/user/login"
	}
	return form(target, url.Values{"username": {user}, "password": {password}})
}

// form returns the request that a form makes.
func form(target string, values url.Values) request {
	header := http.Header{"Content-Type": {"application/x-www-form-urlencoded"}}
	return request{method: http.MethodPost, target: target, body: values.Encode(), header: header}
}
