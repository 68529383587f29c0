// Login protects a login form: five wrong passwords in a quarter of an hour for
// each name and twenty for each address, whichever comes first. A right password
// forgets the wrong ones of its name, and costs the address nothing.
//
//	go run ./examples/login
//	curl -i -d 'user=alice' -d 'password=guess' localhost:8080/login    # six times
//	curl -i -d 'user=bob' -d 'password=correct horse' localhost:8080/login
package main

import (
	"crypto/subtle"
	"fmt"
	"net/http"
	"os"
	"strings"
	"time"

	"github.com/penstock-io/penstock"
	"github.com/penstock-io/penstock/httplimit"
)

func main() {
	h, err := handler(penstock.NewMemory(nil))
	if err == nil {
		fmt.Println("Guess alice's password on http://localhost:8080/login: curl -i -d 'user=alice' -d 'password=guess' localhost:8080/login")
		err = http.ListenAndServe("localhost:8080", h)
	}
	fmt.Fprintln(os.Stderr, err)
	os.Exit(1)
}

// handler returns the form behind its limits.
func handler(store penstock.Store) (http.Handler, error) {
	perName, err := penstock.New(store, penstock.Per(5, 15*time.Minute).WithName("name"))
	if err != nil {
		return nil, err
	}
	perAddress, err := penstock.New(store, penstock.Per(20, 15*time.Minute).WithName("address"))
	if err != nil {
		return nil, err
	}
	// A guess is charged before the password is looked at, so that a hundred
	// guesses at once are no way around the limit.
	protect := httplimit.Protect(perAddress, &httplimit.Options{
		After:      httplimit.OnlyFailures,
		Additional: []httplimit.Charge{{Limiter: perName, Key: user, After: httplimit.ResetOnSuccess}},
	})
	mux := http.NewServeMux()
	mux.Handle("POST /login", protect(http.HandlerFunc(login)))
	return http.MaxBytesHandler(mux, 4<<10), nil
}

func user(r *http.Request) string { return strings.ToLower(r.PostFormValue("user")) }

func login(w http.ResponseWriter, r *http.Request) {
	if subtle.ConstantTimeCompare([]byte(r.PostFormValue("password")), []byte("correct horse")) != 1 {
		http.Error(w, "wrong password", http.StatusUnauthorized)
		return
	}
	fmt.Fprintf(w, "welcome, %s\n", user(r))
}
