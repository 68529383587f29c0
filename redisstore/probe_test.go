package redisstore

import (
	"errors"
	"testing"
)

// Another form of scripts is tried only after a refusal. A server that rejects one call, because it loads its data, and executes the
// next accepts the usual form.
func TestProbeTriesOtherFormsOnlyAfterRefusal(t *testing.T) {
	const noEVALSHA, older = "ERR unknown command 'EVALSHA'", "ERR bad lua script, unknown command 'pexpiretime'"
	for _, c := range []struct {
		replies []string // of the first calls; all others succeed
		known   bool     // whether the probe tells what the server accepts
		form    scriptForm
	}{
		{nil, true, scriptForm{}},
		{[]string{"LOADING Redis is loading the dataset in memory"}, false, scriptForm{}},
		{[]string{"BUSY Redis is busy running a script."}, false, scriptForm{}},
		{[]string{"OOM command not allowed when used memory > 'maxmemory'."}, false, scriptForm{}},
		{[]string{"ERR max number of clients reached"}, false, scriptForm{}},
		{[]string{"NOSCRIPT No matching script."}, true, scriptForm{}},
		{[]string{"NOSCRIPT No matching script.", "LOADING Redis is loading the dataset in memory"}, false, scriptForm{}},
		{[]string{noEVALSHA}, true, scriptForm{text: true}},
		{[]string{"NOSCRIPT No matching script.", older}, true, scriptForm{older: true}},
		{[]string{noEVALSHA, older}, true, scriptForm{text: true, older: true}},
	} {
		p := &probe{do: func(calls []Call) {
			for i := range calls {
				calls[i].Reply = []int64{1}
				if len(c.replies) > 0 {
					calls[i].Err, c.replies = errors.New(c.replies[0]), c.replies[1:]
				}
			}
		}}
		replies := c.replies
		s := &Store{client: &virtualRedis{}}
		err := p.tryScript(s)
		var form scriptForm
		if f := s.form.Load(); f != nil {
			form = *f
		}
		if (err == nil) != c.known || form != c.form {
			t.Errorf("%q: got %v, %+v; want known %t, %+v", replies, err, form, c.known, c.form)
		}
	}
}
