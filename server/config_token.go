package server

import (
	"fmt"
	"os"
	"regexp"
	"strings"

	"github.com/penstock-io/penstock/server/callers"
)

// HasToken reports whether callers need a token.
func (c *Config) HasToken() bool { return c.Token != "" || len(c.Tokens) > 0 }

func (c *Config) readTokens() error {
	switch {
	case c.TokenFile == "":
		return nil
	case c.Token != "":
		return fmt.Errorf("%s and %s: want one of them", c.origin("token"), c.origin("token-file"))
	}
	lines, err := tokenLines(c.TokenFile)
	if err != nil {
		return fmt.Errorf("%s: %w", c.origin("token-file"), err)
	}
	for _, line := range lines {
		c.Tokens = append(c.Tokens, parseToken(line))
	}
	if err := callers.CheckTokens(c.Tokens); err != nil {
		return fmt.Errorf("%s: %s: %w", c.origin("token-file"), c.TokenFile, err)
	}
	return nil
}

// ReadToken returns the token in a file as a client sends it: the first line, with its
// name if it has one.
func ReadToken(path string) (string, error) {
	lines, err := tokenLines(path)
	if err != nil {
		return "", err
	}
	return lines[0], nil
}

// tokenLines returns the lines of a token file, without comments and white space.
func tokenLines(path string) (lines []string, err error) {
	text, err := os.ReadFile(path)
	if err != nil {
		return nil, err
	}
	for line := range strings.Lines(string(text)) {
		if line = strings.TrimSpace(line); line != "" && !strings.HasPrefix(line, "#") {
			lines = append(lines, line)
		}
	}
	if len(lines) == 0 {
		return nil, fmt.Errorf("%s is empty", path)
	}
	return lines, nil
}

// tokenName matches a name before a token. It has no space, so that it cannot be mistaken
// for the beginning of a token that is a phrase.
var tokenName = regexp.MustCompile(`^[A-Za-z0-9][-A-Za-z0-9._@+]{0,63}$`)

// parseToken parses a line: a token, or name:token. A token that is alone in its file may
// have a colon too; it stays valid, because the engine accepts the whole line.
func parseToken(line string) callers.Token {
	name, secret, ok := strings.Cut(line, ":")
	if secret = strings.TrimSpace(secret); ok && secret != "" && tokenName.MatchString(name) {
		return callers.Token{Name: name, Secret: secret}
	}
	return callers.Token{Secret: line}
}
