package secrets_test

import (
	"context"
	"encoding/base64"
	"errors"
	"fmt"
	"net/url"
	"strings"
	"testing"

	"github.com/penstock-io/penstock/internal/secrets"
)

const password = `p/s s"w+rd?ÿ-of-ada`

func TestHideReplacesEachForm(t *testing.T) {
	t.Parallel()
	forms := secrets.Of(password, "ab", "")
	for name, repeated := range map[string]string{
		"plain": password, "quoted": fmt.Sprintf("%q", password), "query": url.QueryEscape(password), "path": url.PathEscape(password),
		"lower": strings.ToLower(url.QueryEscape(password)), "base64": base64.StdEncoding.EncodeToString([]byte(password)),
		"for URLs": base64.URLEncoding.EncodeToString([]byte(password)), "base64 in a query": url.QueryEscape(base64.StdEncoding.EncodeToString([]byte(password))),
		"shortened": password[:9],
	} {
		got := forms.Hide("malformed " + repeated + ": bad answer")
		if !strings.HasPrefix(got, "malformed ") || !strings.HasSuffix(got, ": bad answer") || strings.Count(got, secrets.Mark) != 1 || len(got) > 40 {
			t.Errorf("%s: got %q", name, got)
		}
	}
	for _, text := range []string{"", "ab", "p/s s", "an error without one"} {
		if got := forms.Hide(text); got != text {
			t.Errorf("%q: got %q, want it as it is", text, got)
		}
	}
}

func TestErrorKeepsItsKind(t *testing.T) {
	t.Parallel()
	forms := secrets.Of(password)
	err := forms.Error(fmt.Errorf("status %s: %w", password, context.DeadlineExceeded))
	if err.Error() != "status "+secrets.Mark+": context deadline exceeded" || !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("got %v", err)
	}
	if err := forms.Error(nil); err != nil {
		t.Errorf("of none: got %v", err)
	}
}

// Short passwords are words that documents contain, too.
func TestInFindsLongSecrets(t *testing.T) {
	t.Parallel()
	forms := secrets.Of(password, "shop")
	for text, want := range map[string]bool{"domain: shop": false, "domain: '" + password + "'": true, "domain: " + password[:9]: false} {
		if got := forms.In([]byte(text)); got != want {
			t.Errorf("%q: got %v, want %v", text, got, want)
		}
	}
}
