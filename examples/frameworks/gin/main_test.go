package main

import (
	"net/http"
	"net/http/httptest"
	"testing"

	"github.com/gin-gonic/gin"
	"github.com/penstock-io/penstock"
)

func TestRouterLimitsEachUser(t *testing.T) {
	gin.SetMode(gin.TestMode)
	lim, err := penstock.New(penstock.NewMemory(nil), penstock.PerDay(2))
	if err != nil {
		t.Fatal(err)
	}
	r := router(lim)
	for _, test := range []struct {
		user string
		want int
	}{{"42", 200}, {"42", 200}, {"42", 429}, {"43", 200}} {
		answer := httptest.NewRecorder()
		request := httptest.NewRequest(http.MethodGet, "/orders", nil)
		request.Header.Set("X-User", test.user)
		if r.ServeHTTP(answer, request); answer.Code != test.want {
			t.Errorf("user %s: %d, want %d", test.user, answer.Code, test.want)
		}
	}
}
