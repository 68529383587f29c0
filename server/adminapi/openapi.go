package adminapi

import (
	_ "embed" // for the description of the API
	"net/http"
)

//go:embed openapi.yaml
var openAPI []byte

// handleOpenAPI answers with the description of the API.
func handleOpenAPI(w http.ResponseWriter, _ *http.Request) {
	w.Header().Set("Content-Type", "application/yaml")
	_, _ = w.Write(openAPI) // fails only if the client has disconnected
}
