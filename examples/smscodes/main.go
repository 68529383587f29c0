// Smscodes sends codes by text message, with three limits on one request. Each phone
// number gets one code a minute, and five a day from midnight to midnight in Shanghai.
// Failed sends are refunded to the number. Each address gets twenty an hour, sent or
// not, so that one client cannot text many numbers. No hour has more: a sliding log
// counts exactly, where a bucket of twenty would refill meanwhile and admit 39.
//
//	go run ./examples/smscodes
//	curl -i -d 'phone=13800000000' localhost:8080/codes    # twice
//	curl -i -d 'phone=13800000404' localhost:8080/codes    # the carrier fails to send to this number
package main

import (
	"fmt"
	"net/http"
	"regexp"
	"strings"
	_ "time/tzdata" // zone data for containers that have none

	"github.com/penstock-io/penstock"
	"github.com/penstock-io/penstock/examples/internal/demo"
	"github.com/penstock-io/penstock/httplimit"
)

func main() {
	h, err := handler(penstock.NewMemory(nil))
	demo.Main(h, err, "Request two codes: curl -i -d 'phone=13800000000' localhost:8080/codes")
}

// handler returns the service with its limits.
func handler(store penstock.Store) (http.Handler, error) {
	limiters := map[string]*penstock.Limiter{}
	for name, text := range map[string]string{
		"address": "20/1h sliding-log",
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
	// Behind a load balancer, set Options.Proxies, or all clients have one address.
	protect := httplimit.Protect(limiters["address"], &httplimit.Options{Additional: []httplimit.Charge{
		{Limiter: limiters["minute"], Key: phone, After: httplimit.FreeServerErrors},
		{Limiter: limiters["day"], Key: phone, After: httplimit.FreeServerErrors},
	}})
	mux := http.NewServeMux()
	mux.Handle("POST /codes", requirePhone(protect(http.HandlerFunc(sendCode))))
	return http.MaxBytesHandler(mux, 4<<10), nil
}

// requirePhone rejects requests without a valid number. Without it, they would have an
// empty key, and be charged to the address under the limits for numbers.
func requirePhone(next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if phone(r) == "" {
			http.Error(w, "phone: want a mobile number of eleven digits", http.StatusBadRequest)
			return
		}
		next.ServeHTTP(w, r)
	})
}

var mobile = regexp.MustCompile(`^(?:\+86|0086|86)?(1[3-9][0-9]{9})$`)

// phone returns the number in a normal form, or "" if it is invalid. Without that, each
// way to write a number would have a limit of its own.
func phone(r *http.Request) string {
	digits := strings.Map(func(c rune) rune {
		if strings.ContainsRune(" -.()", c) {
			return -1
		}
		return c
	}, r.PostFormValue("phone"))
	if parts := mobile.FindStringSubmatch(digits); parts != nil {
		return parts[1]
	}
	return ""
}

func sendCode(w http.ResponseWriter, r *http.Request) {
	if strings.HasSuffix(phone(r), "404") {
		http.Error(w, "the carrier failed to send the code", http.StatusBadGateway)
		return
	}
	w.WriteHeader(http.StatusAccepted)
	fmt.Fprintln(w, "code sent to", phone(r))
}
