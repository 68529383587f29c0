package main

import "testing"

func TestDeleteCommandIsOneForAShell(t *testing.T) {
	for _, c := range []struct{ rule, key, want string }{
		{"edge/user", "user=42", "penstock override delete edge/user user=42 --reason …"},
		{"edge/user", "user=it's", `penstock override delete edge/user 'user=it'\''s' --reason …`},
		{"-d/user", "user=1", "penstock override delete --reason … -- -d/user user=1"},
		{"edge/-user", "--all=1", "penstock override delete --reason … -- edge/-user --all=1"},
	} {
		if got := deleteCommand(c.rule, c.key); got != c.want {
			t.Errorf("%s %s: got %s, want %s", c.rule, c.key, got, c.want)
		}
	}
}
