// Smscodes sends codes by text message: to one number one a minute and five a day,
// by the calendar of Shanghai, however the number is written. What the carrier did
// not send costs the number nothing. An address may ask for twenty an hour, sent or
// not, so that nobody goes through all numbers.
//
//	go run ./examples/smscodes
//	curl -i -d 'phone=13800000000' localhost:8080/codes    # twice
//	curl -i -d 'phone=13800000404' localhost:8080/codes    # a number that the carrier does not reach
package main

import (
	"fmt"
	"net/http"
	"os"
	"regexp"
	"strings"
	_ "time/tzdata" // where a container has no zones

	"github.com/penstock-io/penstock"
	"github.com/penstock-io/penstock/httplimit"
)

func main() {
	h, err := handler(penstock.NewMemory(nil))
	if err == nil {
		fmt.Println("Ask for two codes on http://localhost:8080/codes: curl -i -d 'phone=13800000000' localhost:8080/codes")
		err = http.ListenAndServe("localhost:8080", h)
	}
	fmt.Fprintln(os.Stderr, err)
	os.Exit(1)
}

// handler returns the sending of codes behind its limits.
func handler(store penstock.Store) (http.Handler, error) {
	limiters := map[string]*penstock.Limiter{}
	for name, text := range map[string]string{
		"address": "20/1h",
		"minute":  "1/1m",
		"day":     "5/day zone=Asia/Shanghai fixed-window",
	} {
		limit, err := penstock.ParseLimit(text)
		if err != nil {
			return nil, err
		}
		if limiters[name], err = penstock.New(store, limit.WithName(name)); err != nil {
			return nil, err
		}
	}
	// Behind a load balancer, Options.Proxies has to say so.
	protect := httplimit.Protect(limiters["address"], &httplimit.Options{Additional: []httplimit.Charge{
		{Limiter: limiters["minute"], Key: phone, After: httplimit.FreeServerErrors},
		{Limiter: limiters["day"], Key: phone, After: httplimit.FreeServerErrors},
	}})
	mux := http.NewServeMux()
	mux.Handle("POST /codes", checked(protect(http.HandlerFunc(sendCode))))
	return http.MaxBytesHandler(mux, 4<<10), nil
}

// checked refuses what is no number. Without this, such requests would be charged to
// their address in place of a number, which is not what the limits are meant for.
func checked(next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if phone(r) == "" {
			http.Error(w, "want phone, a mobile number of eleven digits", http.StatusBadRequest)
			return
		}
		next.ServeHTTP(w, r)
	})
}

var mobile = regexp.MustCompile(`^(?:\+86|0086|86)?(1[3-9][0-9]{9})$`)

// phone returns the number in the one way that it is counted by, or "" if it is
// none. If one number could be written in ten ways, it would have ten limits.
func phone(r *http.Request) string {
	written := strings.Map(func(c rune) rune {
		if strings.ContainsRune(" -.()", c) {
			return -1
		}
		return c
	}, r.PostFormValue("phone"))
	if parts := mobile.FindStringSubmatch(written); parts != nil {
		return parts[1]
	}
	return ""
}

func sendCode(w http.ResponseWriter, r *http.Request) {
	if strings.HasSuffix(phone(r), "404") {
		http.Error(w, "the carrier did not send it", http.StatusBadGateway)
		return
	}
	w.WriteHeader(http.StatusAccepted)
	fmt.Fprintln(w, "a code is on its way to", phone(r))
}
