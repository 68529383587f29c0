package redisproxy

import "strings"

// luaTokens splits the text of a Lua script into names, numbers, symbols of one character, and literal
// strings, which begin with a quotation mark and have no other at their end.
func luaTokens(text string) (tokens []string) {
	for text != "" {
		var token string
		if token, text = nextToken(text); token != "" {
			tokens = append(tokens, token)
		}
	}
	return tokens
}

// isLiteral reports whether a token is a literal string.
func isLiteral(token string) bool { return token != "" && token[0] == '"' }

// nextToken returns the first token of a text, or "" for a space or a comment, and the rest.
func nextToken(text string) (token, rest string) {
	switch c := text[0]; {
	case strings.HasPrefix(text, "--"):
		if _, rest, long := longBracket(text[2:]); long {
			return "", rest
		}
		_, rest, _ = strings.Cut(text, "\n")
		return "", rest
	case c == '\'' || c == '"':
		return quoted(text)
	case c == '[':
		if body, rest, long := longBracket(text); long {
			return `"` + body, rest
		}
		return "[", text[1:]
	case strings.ContainsRune(" \t\r\n", rune(c)):
		return "", text[1:]
	case !isWord(c):
		return text[:1], text[1:]
	}
	n := 1
	for n < len(text) && isWord(text[n]) {
		n++
	}
	return text[:n], text[n:]
}

func isWord(c byte) bool {
	return c == '_' || '0' <= c && c <= '9' || 'a' <= c && c <= 'z' || 'A' <= c && c <= 'Z'
}

// quoted returns the string at the beginning of a text.
func quoted(text string) (token, rest string) {
	for i := 1; i < len(text); i++ {
		switch text[i] {
		case '\\':
			i++
		case text[0]:
			return `"` + text[1:i], text[i+1:]
		}
	}
	return `"` + text[1:], ""
}

// longBracket returns what is in [[ ]] or [==[ ]==] at the beginning of a text.
func longBracket(text string) (body, rest string, long bool) {
	level := len(text) - len(strings.TrimLeft(strings.TrimPrefix(text, "["), "=")) - 1
	if level < 0 || !strings.HasPrefix(text, "["+strings.Repeat("=", level)+"[") {
		return "", text, false
	}
	body, rest, _ = strings.Cut(text[level+2:], "]"+strings.Repeat("=", level)+"]")
	return body, rest, true
}
