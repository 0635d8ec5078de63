package com.cloudflare.app.boringtun;

import java.nio.ByteBuffer;

/**
 * WireGuard tunnels of libtaupe, by the names and with the values of boringtun's library for Java.
 *
 * <p>A tunnel has one peer. It does no I/O: a call writes the datagram for the network or the packet
 * for the tunnel's interface to {@code dst}, and the operation to the first byte of {@code op}:
 *
 * <table>
 *   <caption>The values of op</caption>
 *   <tr><th>op</th><th>dst</th><th>return value</th></tr>
 *   <tr><td>{@link #WIREGUARD_DONE}</td><td>nothing</td><td>0</td></tr>
 *   <tr><td>{@link #WRITE_TO_NETWORK}</td><td>a datagram for the peer</td><td>its length</td></tr>
 *   <tr><td>{@link #WIREGUARD_ERROR}</td><td>nothing</td><td>a code of docs/library.md</td></tr>
 *   <tr><td>{@link #WRITE_TO_TUNNEL_IPV4}, {@link #WRITE_TO_TUNNEL_IPV6}</td><td>a packet from the
 *       peer</td><td>its length</td></tr>
 * </table>
 *
 * <p>{@code dst} and {@code op} must be direct buffers ({@link ByteBuffer#allocateDirect}). Both are
 * written from their beginning, whatever their position, and neither beyond its capacity. Any number
 * of threads may use a tunnel.
 */
public final class BoringTunJNI {
    /** Nothing to do. */
    public static final int WIREGUARD_DONE = 0;
    /** Send the datagram to the peer. */
    public static final int WRITE_TO_NETWORK = 1;
    /** The call has failed; the return value is the error. */
    public static final int WIREGUARD_ERROR = 2;
    /** An IPv4 packet from the peer. */
    public static final int WRITE_TO_TUNNEL_IPV4 = 4;
    /** An IPv6 packet from the peer. */
    public static final int WRITE_TO_TUNNEL_IPV6 = 6;
    /** Size of a buffer that suffices for any call. */
    public static final int MAX_WIREGUARD_PACKET_SIZE = 65_536 + 64;

    /** The numbering of errors in boringtun 0.6 and later, the default of a tunnel. */
    public static final int NUMBERING_0_6 = 0;
    /** The numbering of errors in boringtun 0.3 to 0.5. */
    public static final int NUMBERING_0_5 = 1;

    static {
        System.loadLibrary("taupe");
    }

    private BoringTunJNI() {}

    /** Returns a new private key, 32 bytes. */
    public static native byte[] x25519_secret_key();

    /** Returns the public key of a private key; {@code null} unless that has 32 bytes. */
    public static native byte[] x25519_public_key(byte[] secretKey);

    /** Returns a key as 64 hexadecimal digits; {@code null} unless it has 32 bytes. */
    public static native String x25519_key_to_hex(byte[] key);

    /** Returns a key as 44 characters of base64; {@code null} unless it has 32 bytes. */
    public static native String x25519_key_to_base64(byte[] key);

    /**
     * Creates a tunnel to one peer. Keys are in base64 or hexadecimal; {@code presharedKey} may be
     * {@code null}. {@code keepAlive} is in seconds, read as unsigned; 0 is off. The lower 24 bits of
     * {@code index} become the upper 24 bits of the tunnel's receiver indices.
     *
     * @return the number of the tunnel for the other methods, or 0 if a key is malformed or missing
     */
    public static native long new_tunnel(
            String secretKey, String publicKey, String presharedKey, short keepAlive, int index);

    /**
     * Sets the numbering of a tunnel's errors, {@link #NUMBERING_0_6} or {@link #NUMBERING_0_5}. Not
     * in boringtun's library for Java.
     *
     * @return true if the tunnel and the numbering exist
     */
    public static native boolean set_numbering(long tunnel, int numbering);

    /**
     * Sends an IP packet to the peer: the first {@code srcSize} bytes of {@code src}. Without a
     * session the packet is queued, and {@code dst} may get a handshake initiation. {@code dst} needs
     * 32 bytes more than the packet, and at least 148.
     */
    public static native int wireguard_write(
            long tunnel, byte[] src, int srcSize, ByteBuffer dst, int dstSize, ByteBuffer op);

    /**
     * Handles a datagram from the peer: the first {@code srcSize} bytes of {@code src}. After each
     * {@link #WRITE_TO_NETWORK}, call it again with a {@code srcSize} of 0 until {@link
     * #WIREGUARD_DONE}, because packets may be queued.
     */
    public static native int wireguard_read(
            long tunnel, byte[] src, int srcSize, ByteBuffer dst, int dstSize, ByteBuffer op);

    /** Runs the timers. Call it every 100 ms. {@code dst} needs 148 bytes. */
    public static native int wireguard_tick(long tunnel, ByteBuffer dst, int dstSize, ByteBuffer op);

    /**
     * Starts a handshake, even if there is a session. {@code dst} needs 148 bytes. Not in boringtun's
     * library for Java.
     */
    public static native int wireguard_force_handshake(
            long tunnel, ByteBuffer dst, int dstSize, ByteBuffer op);

    /**
     * Ends a tunnel. Its keys are erased when calls of other threads have returned. Later calls with
     * its number are errors, as with 0. Not in boringtun's library for Java, where tunnels live as
     * long as the process.
     */
    public static native void tunnel_free(long tunnel);
}
