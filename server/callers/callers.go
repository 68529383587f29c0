// Package callers knows which callers may refund units and reset keys: those with a token or, without
// tokens, those on this machine.
package callers

import (
	"crypto/sha256"
	"crypto/subtle"
	"errors"
	"fmt"
	"net/netip"
)

// A Caller is what an API knows about where a request comes from.
type Caller struct {
	// Local says that the caller is a program on this machine that connects directly.
	Local bool

	// Token is what the caller sent as its token, or "".
	Token string

	// Address is the caller's end of the connection. That of a Unix socket is zero.
	Address netip.Addr
}

// A Token lets callers that know its secret refund units and reset keys. Its name, which
// is optional, says in the audit log which of them did.
type Token struct{ Name, Secret string }

// An Identity is what is known about a caller.
type Identity struct {
	// MayRefund is whether the caller may refund units and reset keys.
	MayRefund bool

	// ByToken says that the caller has a token, and Name is the name of that token.
	ByToken bool
	Name    string
}

// Rights say which callers may refund.
type Rights struct {
	tokens     []hashedToken
	trustLocal bool
}

// NewRights returns the rights of callers with one of the tokens. Without tokens, local callers
// have them if they are trusted.
func NewRights(tokens []Token, trustLocal bool) Rights {
	return Rights{hashTokens(tokens), trustLocal}
}

// Identify returns what is known about a caller. With tokens, only a token counts:
// a proxy on this machine can be mistaken for a local caller.
func (r *Rights) Identify(c Caller) Identity {
	if len(r.tokens) == 0 {
		return Identity{MayRefund: c.Local && r.trustLocal}
	}
	name, ok := r.find(c.Token)
	return Identity{MayRefund: ok, ByToken: ok, Name: name}
}

// MayRefund reports whether a caller may refund units or reset keys; see Identify.
func (r *Rights) MayRefund(c Caller) bool { return r.Identify(c).MayRefund }

// HasToken reports whether there is a token.
func (r *Rights) HasToken() bool { return len(r.tokens) > 0 }

// A hashedToken is one form of a token that callers may send. Hashes have one length, so
// that comparing them does not reveal that of the token.
type hashedToken struct {
	name string
	hash [sha256.Size]byte
}

// hashTokens returns the forms in which callers may send tokens: the secret, and with its
// name before it, as a line of a token file has it.
func hashTokens(tokens []Token) (all []hashedToken) {
	for _, t := range tokens {
		if t.Secret == "" {
			continue
		}
		all = append(all, hashedToken{t.Name, sha256.Sum256([]byte(t.Secret))})
		if t.Name != "" {
			all = append(all, hashedToken{t.Name, sha256.Sum256([]byte(t.Name + ":" + t.Secret))})
		}
	}
	return all
}

// find returns the name of a token. It compares with all tokens, so that the time
// does not reveal which one is similar.
func (r *Rights) find(text string) (name string, ok bool) {
	given := sha256.Sum256([]byte(text))
	for i := range r.tokens {
		t := &r.tokens[i]
		if subtle.ConstantTimeCompare(given[:], t.hash[:]) == 1 {
			name, ok = t.name, true
		}
	}
	return name, ok
}

// CheckTokens returns an error if two tokens have one name or one secret: then the name
// would not say which of them was used.
func CheckTokens(tokens []Token) error {
	names, secrets := map[string]bool{}, map[string]bool{}
	for _, t := range tokens {
		switch {
		case t.Secret == "":
			return errors.New("empty token")
		case t.Name != "" && names[t.Name]:
			return fmt.Errorf("two tokens have the name %q", t.Name)
		case secrets[t.Secret]:
			return fmt.Errorf("two lines have the same token, one of them that of %q", t.Name)
		}
		names[t.Name], secrets[t.Secret] = true, true
	}
	return nil
}
