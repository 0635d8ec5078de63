# UNTESTED: nobody has built this yet. In the folder of the sources:
#
#   nix-build -E 'with import <nixpkgs> { }; callPackage ./packaging/nix/package.nix { }'
#
# The units are in lib/systemd/system: `systemd.packages = [ taupe ];` in NixOS. It needs the Rust that
# Cargo.toml names as `rust-version`. The service for users without root is not in it: NixOS would need a
# module, which declares its user, its group, its socket and its files of message bus and polkit.
{
  lib,
  stdenv,
  cargo,
  rustc,
  rustPlatform,
}:

stdenv.mkDerivation {
  pname = "taupe";
  version = "0.1.0";

  src = lib.cleanSourceWith {
    src = ../..;
    filter = path: type: baseNameOf path != "target" && lib.cleanSourceFilter path type;
  };

  cargoDeps = rustPlatform.importCargoLock { lockFile = ../../Cargo.lock; };
  nativeBuildInputs = [
    cargo
    rustc
    rustPlatform.cargoSetupHook
  ];

  buildPhase = ''
    runHook preBuild
    cargo build --offline --release -p taupe
    cargo build --offline --release -p taupe-web
    cargo run --offline --release -p taupe --example pages -- target/release/pages
    runHook postBuild
  '';

  installPhase = ''
    runHook preInstall
    PREFIX=$out sh packaging/install
    runHook postInstall
  '';

  meta = {
    description = "WireGuard in user space, for all or only selected applications";
    license = with lib.licenses; [
      mit
      asl20
    ];
    platforms = lib.platforms.linux;
    mainProgram = "taupe";
  };
}
