// Smscodes sends codes by text message: to one number one a minute and five a day,
// by the calendar of Shanghai. What the carrier did not send costs nothing.
//
//	go run ./examples/smscodes
//	curl -i -d 'phone=13800000000' localhost:8080/codes    # twice
//	curl -i -d 'phone=13800000404' localhost:8080/codes    # a number that the carrier does not reach
package main

import (
	"fmt"
	"net/http"
	"os"
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
		"minute": "1/1m",
		"day":    "5/day zone=Asia/Shanghai fixed-window",
	} {
		limit, err := penstock.ParseLimit(text)
		if err != nil {
			return nil, err
		}
		if limiters[name], err = penstock.New(store, limit.WithName(name)); err != nil {
			return nil, err
		}
	}
	protect := httplimit.Protect(limiters["minute"], &httplimit.Options{
		Key:   phone,
		After: httplimit.FreeServerErrors,
		Also:  []httplimit.Charge{{Limiter: limiters["day"], Key: phone, After: httplimit.FreeServerErrors}},
	})
	mux := http.NewServeMux()
	mux.Handle("POST /codes", protect(http.HandlerFunc(sendCode)))
	return http.MaxBytesHandler(mux, 4<<10), nil
}

func phone(r *http.Request) string { return r.PostFormValue("phone") }

func sendCode(w http.ResponseWriter, r *http.Request) {
	if strings.HasSuffix(phone(r), "404") {
		http.Error(w, "the carrier did not send it", http.StatusBadGateway)
		return
	}
	w.WriteHeader(http.StatusAccepted)
	fmt.Fprintln(w, "a code is on its way to", phone(r))
}
