package engine

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

// An Identity is what the engine knows about a caller.
type Identity struct {
	// MayRefund is whether the caller may refund units and reset keys.
	MayRefund bool

	// ByToken says that the caller has a token, and Name is the name of that token.
	ByToken bool
	Name    string
}

// callers know who may refund.
type callers struct {
	tokens     []hashedToken
	trustLocal bool
}

func newCallers(o *Options) callers {
	return callers{tokens: hashTokens(append([]Token{{Secret: o.Token}}, o.Tokens...)), trustLocal: !o.DistrustLocal}
}

// Identify returns what the engine knows about a caller. With tokens, only a token counts:
// a proxy on this machine can be mistaken for a local caller.
func (k *callers) Identify(c Caller) Identity {
	if len(k.tokens) == 0 {
		return Identity{MayRefund: c.Local && k.trustLocal}
	}
	name, ok := k.find(c.Token)
	return Identity{MayRefund: ok, ByToken: ok, Name: name}
}

// MayRefund reports whether a caller may refund units or reset keys; see [Engine.Identify].
func (k *callers) MayRefund(c Caller) bool { return k.Identify(c).MayRefund }

// HasToken reports whether the engine has a token.
func (k *callers) HasToken() bool { return len(k.tokens) > 0 }

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
func (k *callers) find(text string) (name string, ok bool) {
	given := sha256.Sum256([]byte(text))
	for i := range k.tokens {
		t := &k.tokens[i]
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
