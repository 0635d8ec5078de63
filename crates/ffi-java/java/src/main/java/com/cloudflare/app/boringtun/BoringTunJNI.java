package com.cloudflare.app.boringtun;

import java.nio.ByteBuffer;

/**
 * WireGuard tunnels of libtaupe, by the names and with the values of boringtun's library for Java.
 *
 * <p>A tunnel is one peer. It does no I/O: whatever is to be sent to the network or to the tunnel's
 * interface is put into {@code dst}, and the first byte of {@code op} says which:
 *
 * <table>
 *   <caption>The values of op</caption>
 *   <tr><th>op</th><th>what is in dst</th><th>what is returned</th></tr>
 *   <tr><td>{@link #WIREGUARD_DONE}</td><td>nothing</td><td>0</td></tr>
 *   <tr><td>{@link #WRITE_TO_NETWORK}</td><td>a datagram for the peer</td><td>its length</td></tr>
 *   <tr><td>{@link #WIREGUARD_ERROR}</td><td>nothing</td><td>a code of docs/library.md</td></tr>
 *   <tr><td>{@link #WRITE_TO_TUNNEL_IPV4}, {@link #WRITE_TO_TUNNEL_IPV6}</td><td>a packet from the
 *       peer</td><td>its length</td></tr>
 * </table>
 *
 * <p>{@code dst} and {@code op} must be direct buffers ({@link ByteBuffer#allocateDirect}); both are
 * written from their beginning, whatever their position, and neither beyond its capacity. A tunnel
 * may be used by any number of threads.
 */
public final class BoringTunJNI {
    /** Nothing is to be done. */
    public static final int WIREGUARD_DONE = 0;
    /** A datagram is to be sent to the peer. */
    public static final int WRITE_TO_NETWORK = 1;
    /** Something was refused; the returned number says why. */
    public static final int WIREGUARD_ERROR = 2;
    /** An IPv4 packet has come from the peer. */
    public static final int WRITE_TO_TUNNEL_IPV4 = 4;
    /** An IPv6 packet has come from the peer. */
    public static final int WRITE_TO_TUNNEL_IPV6 = 6;
    /** As much room as any call needs. */
    public static final int MAX_WIREGUARD_PACKET_SIZE = 65_536 + 64;

    /** The numbers of errors that boringtun 0.6 and later have; at first a tunnel has these. */
    public static final int NUMBERING_0_6 = 0;
    /** The numbers of errors that boringtun 0.3 to 0.5 had. */
    public static final int NUMBERING_0_5 = 1;

    static {
        System.loadLibrary("taupe");
    }

    private BoringTunJNI() {}

    /** A fresh private key, 32 bytes. */
    public static native byte[] x25519_secret_key();

    /** The public key of a private one; {@code null} unless that has 32 bytes. */
    public static native byte[] x25519_public_key(byte[] secretKey);

    /** A key as 64 hexadecimal digits; {@code null} unless it has 32 bytes. */
    public static native String x25519_key_to_hex(byte[] key);

    /** A key as 44 characters of base64; {@code null} unless it has 32 bytes. */
    public static native String x25519_key_to_base64(byte[] key);

    /**
     * A tunnel to one peer. Its keys are base64 or hexadecimal; {@code presharedKey} may be
     * {@code null}. {@code keepAlive} is in seconds, read as unsigned, 0 for none; the lower 24 bits
     * of {@code index} begin the indices of its sessions.
     *
     * @return what the other methods take, or 0 if a key is malformed or missing
     */
    public static native long new_tunnel(
            String secretKey, String publicKey, String presharedKey, short keepAlive, int index);

    /**
     * Has a tunnel's errors numbered as another version of boringtun has them, {@link
     * #NUMBERING_0_6} or {@link #NUMBERING_0_5}. Not in boringtun's library for Java.
     *
     * @return whether there are such a tunnel and such numbers
     */
    public static native boolean set_numbering(long tunnel, int numbering);

    /**
     * Takes the first {@code srcSize} bytes of {@code src}, an IP packet for the peer. Without a
     * session the packet waits, and what is to be sent is a handshake. {@code dst} needs 32 bytes more
     * than the packet, and 148 at least.
     */
    public static native int wireguard_write(
            long tunnel, byte[] src, int srcSize, ByteBuffer dst, int dstSize, ByteBuffer op);

    /**
     * Takes the first {@code srcSize} bytes of {@code src}, a datagram from the peer. After each
     * {@link #WRITE_TO_NETWORK} it is to be called again with a {@code srcSize} of 0 until it says
     * {@link #WIREGUARD_DONE}: packets may have waited.
     */
    public static native int wireguard_read(
            long tunnel, byte[] src, int srcSize, ByteBuffer dst, int dstSize, ByteBuffer op);

    /** Does what is due; to be called every 100 ms. {@code dst} needs 148 bytes. */
    public static native int wireguard_tick(long tunnel, ByteBuffer dst, int dstSize, ByteBuffer op);

    /**
     * Begins a handshake, whether one is needed or not. {@code dst} needs 148 bytes. Not in boringtun's
     * library for Java.
     */
    public static native int wireguard_force_handshake(
            long tunnel, ByteBuffer dst, int dstSize, ByteBuffer op);

    /**
     * Ends a tunnel and erases its keys, once calls that others are in have returned. From then on
     * every call with it is an error, as with 0. Not in boringtun's library for Java, where tunnels
     * stay as long as the process.
     */
    public static native void tunnel_free(long tunnel);
}
