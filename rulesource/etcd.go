package rulesource

import (
	"context"
	"encoding/json"
	"errors"
	"io"
	"net/http"
	"strconv"
	"strings"

	"github.com/penstock-io/penstock/rules"
)

// An etcdKey is a key of etcd, or all keys below one that ends with a slash. It speaks to the
// JSON gateway that every etcd since 3.4 has on its client port: the official client would add
// thirty modules to the daemon and to each program for two calls.
type etcdKey struct{ key string }

func openEtcd(l *location) (protocol, error) {
	if strings.Trim(l.path, "/") == "" {
		return nil, errWantKey
	}
	l.waits = true
	return &etcdKey{key: l.path}, nil
}

// etcdRange is the request of a range, and of a watch.
type etcdRange struct {
	Key           []byte `json:"key"`
	RangeEnd      []byte `json:"range_end,omitempty"`
	StartRevision string `json:"start_revision,omitempty"`
}

func (s *etcdKey) all() etcdRange {
	all := etcdRange{Key: []byte(s.key)}
	if end, ok := strings.CutSuffix(s.key, "/"); ok {
		all.RangeEnd = []byte(end + "0") // the byte after the slash
	}
	return all
}

// fetch waits for an event after the revision of the last fetch, and reads the keys.
func (s *etcdKey) fetch(ctx context.Context, c *client, version string) ([]rules.File, string, error) {
	err := c.login(ctx, func(user, password string) request {
		return c.etcdRequest("/v3/auth/authenticate", map[string]string{"name": user, "password": password})
	})
	if err != nil {
		return nil, "", err
	}
	if version != "" {
		if err := s.watch(ctx, c, version); err != nil {
			return nil, "", err
		}
	}
	var answer struct {
		Header struct{ Revision string }
		Kvs    []struct{ Key, Value []byte }
	}
	if _, err := c.json(ctx, c.etcdRequest("/v3/kv/range", s.all()), &answer); err != nil {
		return nil, "", err
	}
	if len(answer.Kvs) == 0 {
		return nil, "", errNoKey
	}
	var files []rules.File
	for _, kv := range answer.Kvs {
		files = appendKey(files, s.key, string(kv.Key), kv.Value)
	}
	if len(files) == 0 {
		return nil, "", errNoRules
	}
	return files, answer.Header.Revision, nil
}

// watch returns after the first event since a revision, or when it has waited for long enough. It does not wait for a
// revision that the server is behind of, after a restore or in place of another.
func (s *etcdKey) watch(ctx context.Context, c *client, version string) error {
	revision, err := strconv.ParseInt(version, 10, 64)
	if err != nil {
		return nil
	}
	all := s.all()
	all.StartRevision = strconv.FormatInt(revision+1, 10)
	r := c.etcdRequest("/v3/watch", map[string]any{"create_request": all})
	r.hold = holdTime
	waiting, cancel := context.WithTimeout(ctx, holdTime)
	defer cancel()
	err = c.stream(waiting, r, func(_ *http.Response, body io.Reader) error {
		for events := json.NewDecoder(io.LimitReader(body, maxBody)); ; {
			var event struct {
				Result *struct {
					Header struct {
						Revision int64 `json:",string"`
					}
					Canceled bool
					Events   []struct{}
				}
			}
			if err := events.Decode(&event); err != nil {
				return withoutURL(err)
			}
			if event.Result == nil {
				return errors.New("watch failed")
			}
			behind := event.Result.Header.Revision < revision
			if behind || event.Result.Canceled || len(event.Result.Events) > 0 { // canceled if the revision is compacted
				return nil
			}
		}
	})
	if waiting.Err() != nil && ctx.Err() == nil {
		return nil
	}
	return err
}

func (c *client) etcdRequest(target string, body any) request {
	text, _ := json.Marshal(body) // texts only
	r := request{method: http.MethodPost, target: target, body: string(text), header: http.Header{"Content-Type": {"application/json"}}}
	if c.token != "" {
		r.header.Set("Authorization", c.token)
	}
	return r
}
