package rulesource

import (
	"context"
	"crypto/hmac"
	"crypto/sha1" //nolint:gosec // what Apollo signs by
	"encoding/base64"
	"encoding/json"
	"net/http"
	"net/url"
	"strconv"
	"time"

	"github.com/penstock-io/penstock/rules"
)

// An apolloNamespace is a namespace of Apollo that is not of properties, such as rules.yaml: its
// text is the item content. A namespace of properties, such as application, has the
// rules in an item of that name too. Its notifications wait for a release.
type apolloNamespace struct{ app, cluster, namespace string }

func openApollo(l *location) (protocol, error) {
	parts, err := l.parts("APP/CLUSTER/NAMESPACE")
	if err != nil {
		return nil, err
	}
	l.waits = true
	return &apolloNamespace{app: parts[0], cluster: parts[1], namespace: parts[2]}, nil
}

// An apolloNotification is the number of the last release, which is the version.
type apolloNotification struct {
	NamespaceName  string `json:"namespaceName"`
	NotificationID int64  `json:"notificationId"`
}

func (s *apolloNamespace) fetch(ctx context.Context, c *client, version string) ([]rules.File, string, error) {
	id, err := int64(-1), error(nil) // the number before the first release
	if version != "" {
		id, err = s.wait(ctx, c, version)
	}
	if hasStatus(err, http.StatusNotModified) {
		return nil, version, nil
	}
	var answer struct{ Configurations map[string]string }
	if err == nil {
		err = s.get(ctx, c, id, &answer)
	}
	if err != nil {
		return nil, "", orNoKey(err)
	}
	text, ok := answer.Configurations["content"]
	if !ok {
		return nil, "", errNoContent
	}
	return []rules.File{{Text: []byte(text)}}, strconv.FormatInt(id, 10), nil
}

// wait returns the number of the last release once it is another than the version.
func (s *apolloNamespace) wait(ctx context.Context, c *client, version string) (id int64, err error) {
	if id, err = strconv.ParseInt(version, 10, 64); err != nil {
		return 0, err
	}
	asked, _ := json.Marshal([]apolloNotification{{s.namespace, id}}) // texts and numbers
	query := url.Values{"appId": {s.app}, "cluster": {s.cluster}, "notifications": {string(asked)}}
	r, err := s.request(c, "/notifications/v2?"+query.Encode())
	if err != nil {
		return 0, err
	}
	r.hold = time.Minute // which Apollo waits for
	var all []apolloNotification
	if _, err := c.json(ctx, r, &all); err != nil {
		return 0, err
	}
	for _, n := range all {
		id = n.NotificationID // of the only namespace that was asked for
	}
	return id, nil
}

// get reads the namespace. The messages make a server with a cache read at least that release.
func (s *apolloNamespace) get(ctx context.Context, c *client, id int64, into any) error {
	messages, _ := json.Marshal(map[string]any{"details": map[string]int64{s.app + "+" + s.cluster + "+" + s.namespace: id}})
	target := "/configs/" + url.PathEscape(s.app) + "/" + url.PathEscape(s.cluster) + "/" + url.PathEscape(s.namespace)
	r, err := s.request(c, target+"?"+url.Values{"messages": {string(messages)}}.Encode())
	if err != nil {
		return err
	}
	_, err = c.json(ctx, r, into)
	return err
}

// request signs a request, if there is a secret.
func (s *apolloNamespace) request(c *client, target string) (request, error) {
	r := request{target: target, header: http.Header{}}
	secret, err := c.credentials()
	if err != nil || secret == "" {
		return r, err
	}
	now := strconv.FormatInt(time.Now().UnixMilli(), 10)
	mac := hmac.New(sha1.New, []byte(secret))
	mac.Write([]byte(now + "\n" + target))
	r.header.Set("Timestamp", now)
	r.header.Set("Authorization", "Apollo "+s.app+":"+base64.StdEncoding.EncodeToString(mac.Sum(nil)))
	return r, nil
}
