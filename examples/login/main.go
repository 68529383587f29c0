// Login protects a login form: in any 15 minutes at most five wrong passwords for each
// user, and twenty for each address. The limit per user stops guesses at one account from many
// addresses; the limit per address stops guesses at many accounts. A correct password
// resets the user's limit and costs the address nothing.
//
//	go run ./examples/login
//	curl -i -d 'user=alice' -d 'password=guess' localhost:8080/login    # six times
//	curl -i -d 'user=bob' -d 'password=correct horse' localhost:8080/login
package main

import (
	"crypto/subtle"
	"fmt"
	"net/http"
	"strings"
	"time"

	"github.com/penstock-io/penstock"
	"github.com/penstock-io/penstock/examples/internal/demo"
	"github.com/penstock-io/penstock/httplimit"
)

func main() {
	h, err := handler(penstock.NewMemory(nil))
	demo.Main(h, err, "Try a wrong password six times: curl -i -d 'user=alice' -d 'password=guess' localhost:8080/login")
}

// handler returns the login form with its limits.
func handler(store penstock.Store) (http.Handler, error) {
	perUser, err := penstock.New(store, in15Minutes(5).WithName("user"))
	if err != nil {
		return nil, err
	}
	perAddress, err := penstock.New(store, in15Minutes(20).WithName("address"))
	if err != nil {
		return nil, err
	}
	// A request is charged before the password is checked, so that a hundred
	// concurrent guesses cannot pass the limit. OnlyFailures and ResetOnSuccess
	// correct the charge afterwards.
	protect := httplimit.Protect(perAddress, &httplimit.Options{
		After:      httplimit.OnlyFailures,
		Additional: []httplimit.Charge{{Limiter: perUser, Key: user, After: httplimit.ResetOnSuccess}},
	})
	mux := http.NewServeMux()
	mux.Handle("POST /login", protect(http.HandlerFunc(login)))
	return http.MaxBytesHandler(mux, 4<<10), nil
}

// in15Minutes is exact: a sliding log never admits more than n in any 15 minutes. A token
// bucket, the default, would refill meanwhile and admit up to 2n − 1.
func in15Minutes(n int64) penstock.Limit {
	return penstock.Per(n, 15*time.Minute).WithAlgorithm(penstock.SlidingLog)
}

func user(r *http.Request) string { return strings.ToLower(r.PostFormValue("user")) }

func login(w http.ResponseWriter, r *http.Request) {
	if subtle.ConstantTimeCompare([]byte(r.PostFormValue("password")), []byte("correct horse")) != 1 {
		http.Error(w, "wrong password", http.StatusUnauthorized)
		return
	}
	fmt.Fprintf(w, "welcome, %s\n", user(r))
}
