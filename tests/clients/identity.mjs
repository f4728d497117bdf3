// An identity provider by others, on loopback. Prints its issuer; ends with its standard input.
//
// A token for a resource whose path has "opaque" in it is opaque; all others are JWTs (RFC 9068).
import { generateKeyPairSync } from "node:crypto";
import { createServer } from "node:http";
import Provider from "oidc-provider";

const SCOPES = ["mcp:list", "mcp:call", "mcp:read", "mcp:prompt", "mcp:subscribe", "mcp:meta"];
const jwk = generateKeyPairSync("rsa", { modulusLength: 2048 }).privateKey.export({ format: "jwk" });
const server = createServer();
server.listen(0, "127.0.0.1", () => {
  const issuer = `http://127.0.0.1:${server.address().port}`;
  const provider = new Provider(issuer, {
    clients: [{
      client_id: "gateway", client_secret: process.env.SECRET, grant_types: ["client_credentials"],
      redirect_uris: [], response_types: [], scope: SCOPES.join(" "),
    }, {
      client_id: "laptop", application_type: "native", token_endpoint_auth_method: "none",
      redirect_uris: ["http://127.0.0.1:33418/callback"],
      grant_types: ["authorization_code", "refresh_token"], scope: ["offline_access", ...SCOPES].join(" "),
    }],
    jwks: { keys: [{ ...jwk, use: "sig", alg: "RS256", kid: "first" }] },
    scopes: ["openid", "offline_access", ...SCOPES],
    features: {
      devInteractions: { enabled: true },
      registration: { enabled: true },
      introspection: { enabled: true },
      revocation: { enabled: true },
      clientCredentials: { enabled: true },
      resourceIndicators: {
        enabled: true,
        useGrantedResource: () => true,
        getResourceServerInfo: (_, resource) => ({
          audience: resource,
          scope: SCOPES.join(" "),
          accessTokenTTL: Number(process.env.TTL ?? 600),
          accessTokenFormat: resource.includes("opaque") ? "opaque" : "jwt",
        }),
      },
    },
  });
  server.on("request", provider.callback());
  console.log(issuer);
});
process.stdin.on("end", () => process.exit(0)).resume();
