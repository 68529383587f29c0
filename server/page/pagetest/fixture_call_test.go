package pagetest_test

import (
	"context"
	"testing"

	"github.com/chromedp/cdproto/cdp"
	"github.com/chromedp/chromedp"
)

// must runs a command of the browser's protocol.
func must[P, R any](ctx context.Context, t *testing.T, command cdp.Command[P, R], parameters P) R {
	t.Helper()
	result, err := chromedp.Call(ctx, command, parameters)
	if err != nil {
		t.Fatalf("%s: %v", command.Method, err)
	}
	return result
}
