# One static binary in an empty image: no shell, no package manager, no root.
#
#   docker build -t penstock .
#   docker run -p 8080:8080 -p 8081:8081 -p 6380:6380 penstock
#   docker run -v ./rules:/rules:ro penstock serve --rules /rules --store redis://redis:6379
#   docker buildx build --platform linux/amd64,linux/arm64 -t penstock .
#
# In place of envoyproxy/ratelimit it needs no command: with that service's variables serve acts as
# /bin/ratelimit, which is there too.
# The compiler runs on the machine that builds, for whatever architecture. It is, or downloads, the one that go.mod names.
FROM --platform=$BUILDPLATFORM golang:1.26.8@sha256:3c3e25a4da13fd0478eed2df1eb35a0e667094a7124d3993a6a1d30f71c17e79 AS build
ARG TARGETOS TARGETARCH
ENV GOTOOLCHAIN=auto
WORKDIR /src
COPY go.mod go.sum ./
RUN go mod download
COPY . .
RUN mkdir -p /image/bin && ln -s ../penstock /image/bin/ratelimit
RUN CGO_ENABLED=0 GOOS=$TARGETOS GOARCH=$TARGETARCH go build -trimpath -ldflags="-s -w" -o /image/penstock ./cmd/penstock

FROM scratch
COPY --from=build /etc/ssl/certs/ca-certificates.crt /etc/ssl/certs/
COPY --from=build /image/ /
USER 65532:65532
EXPOSE 8080 8081 6380
STOPSIGNAL SIGTERM
HEALTHCHECK --interval=5s --timeout=2s --start-period=10s CMD ["/penstock", "health"]
ENTRYPOINT ["/penstock"]
CMD ["serve"]
